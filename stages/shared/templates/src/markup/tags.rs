//! Tags and their attributes.

use super::super::limits::ATTRIBUTES;
use super::{Attribute, Broken, HtmlTag, HtmlToken, MarkupFaultReason, MarkupReader};

/// Elements whose content is text up to their end tag.
const RAW_TEXT: [&str; 8] = ["iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp"];
impl<'d> MarkupReader<'d, '_> {
    fn name(&self, from: usize) -> &'d str {
        let rest = self.rest(from);
        let end = rest.bytes().position(|byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>'));
        rest.get(..end.unwrap_or(rest.len())).unwrap_or_default()
    }

    pub(super) fn end_tag(&mut self, open: usize) -> Result<HtmlToken<'d>, Broken> {
        let name = self.name(open + 2);
        self.at = open + 2 + name.len();
        // An end tag's attributes mean nothing, but a `>` in one does not end the tag.
        self.attributes(open)?;
        self.count(name, false);
        Ok(HtmlToken::End { name, span: self.span(open..self.at) })
    }

    pub(super) fn start_tag(&mut self, open: usize) -> Result<HtmlToken<'d>, Broken> {
        let name = self.name(open + 1);
        self.at = open + 1 + name.len();
        let (attributes, is_self_closing) = self.attributes(open)?;
        if ["plaintext", "frameset"].iter().any(|refused| name.eq_ignore_ascii_case(refused)) {
            self.refuse(open, MarkupFaultReason::Element)?;
        }
        if let Some(raw) = RAW_TEXT.iter().find(|raw| name.eq_ignore_ascii_case(raw)) {
            if is_self_closing && self.svg_or_select > 0 {
                self.refuse(open, MarkupFaultReason::Ambiguous)?;
            }
            self.raw = Some((*raw, open));
        } else if !is_self_closing {
            self.count(name, true);
        }
        Ok(HtmlToken::Start(HtmlTag { name, span: self.span(open..self.at), attributes, is_self_closing }))
    }

    fn count(&mut self, name: &str, is_start: bool) {
        let counter = if name.eq_ignore_ascii_case("noscript") {
            &mut self.noscript
        } else if ["svg", "math", "select"].iter().any(|known| name.eq_ignore_ascii_case(known)) {
            &mut self.svg_or_select
        } else {
            return;
        };
        *counter = if is_start { counter.saturating_add(1) } else { counter.saturating_sub(1) };
    }

    /// The attributes up to the end of the tag, and whether it closes itself.
    fn attributes(&mut self, open: usize) -> Result<(Vec<Attribute<'d>>, bool), Broken> {
        let mut attributes = Vec::new();
        let mut slash = false;
        loop {
            match self.byte(self.at) {
                None => {
                    self.broken(open, MarkupFaultReason::Tag)?;
                    return Ok((attributes, slash));
                }
                Some(b'>') => {
                    self.at += 1;
                    return Ok((attributes, slash));
                }
                Some(b'/') => {
                    slash = true;
                    self.at += 1;
                }
                Some(byte) if byte.is_ascii_whitespace() => self.at += 1,
                Some(_) => {
                    slash = false;
                    if attributes.len() >= ATTRIBUTES {
                        self.refuse(open, MarkupFaultReason::Attributes)?;
                    }
                    attributes.extend(self.attribute(open)?);
                }
            }
        }
    }

    /// One attribute. `None`: the document has ended.
    fn attribute(&mut self, open: usize) -> Result<Option<Attribute<'d>>, Broken> {
        let start = self.at;
        // A name may begin with `=`.
        self.skip_to(self.at + 1, |byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>' | b'='));
        let name = self.span(start..self.at);
        let after_name = self.at;
        self.skip_to(self.at, |byte| !byte.is_ascii_whitespace());
        let mut attribute = Attribute { name, value: self.span(after_name..after_name), quote: None };
        if self.byte(self.at) != Some(b'=') {
            self.at = after_name;
            return Ok(Some(attribute));
        }
        self.skip_to(self.at + 1, |byte| !byte.is_ascii_whitespace());
        match self.byte(self.at) {
            Some(quote @ (b'"' | b'\'')) => {
                let from = self.at + 1;
                let Some(length) = self.rest(from).find(char::from(quote)) else {
                    self.broken(open, MarkupFaultReason::Tag)?;
                    return Ok(None);
                };
                attribute.value = self.span(from..from + length);
                attribute.quote = Some(quote);
                self.at = from + length + 1;
                self.check_noscript(attribute.value)?;
            }
            _ => {
                let from = self.at;
                self.skip_to(from, |byte| byte.is_ascii_whitespace() || byte == b'>');
                attribute.value = self.span(from..self.at);
            }
        }
        Ok(Some(attribute))
    }

    /// Goes on to the first byte that stops.
    fn skip_to(&mut self, from: usize, stops: impl Fn(u8) -> bool) {
        let bytes = self.document.as_bytes().get(from..).unwrap_or_default();
        let skipped = bytes.iter().position(|byte| stops(*byte)).unwrap_or(bytes.len());
        self.at = (from + skipped).min(self.document.len());
        // A name of several bytes a character is not cut: what stops is ASCII.
    }
}
