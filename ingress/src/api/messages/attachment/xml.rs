//! The start tags of an XML document, as a parser would see them (XML 1.0 §2 and §3.1), without a tree.
//!
//! Only the plain form that office programs write is taken: UTF-8, no document type, no numeric references. Anything else could spell
//! a word so that it is not recognised here.

use super::refusal::AttachmentRefusal;

/// Most attributes of one element.
const ATTRIBUTES_MAX: usize = 64;

/// A start tag: the local name of the element, and its attributes by their local names. All in the letters of the document.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StartTag<'a> {
    pub(super) name: &'a str,
    pub(super) attributes: Vec<(&'a str, &'a str)>,
}

impl StartTag<'_> {
    /// The values of an attribute, whatever its namespace.
    pub(super) fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.attributes.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }
}

/// Calls `see` with each start tag.
pub(super) fn elements<'a>(
    document: &'a [u8],
    mut see: impl FnMut(StartTag<'a>) -> Result<(), AttachmentRefusal>,
) -> Result<(), AttachmentRefusal> {
    let text = std::str::from_utf8(document).map_err(|_| AttachmentRefusal::NotInspectable)?;
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    // UTF-16 of ASCII letters is valid UTF-8 with NULs between them.
    let is_odd = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r');
    if rest.contains("&#") || rest.chars().any(is_odd) {
        return Err(AttachmentRefusal::NotInspectable);
    }
    while let Some(at) = rest.find('<') {
        let tag = &rest[at + 1..];
        rest = match tag.as_bytes().first() {
            Some(b'?') => {
                let (instruction, after) = tag[1..].split_once("?>").ok_or(AttachmentRefusal::NotInspectable)?;
                check_encoding(instruction)?;
                after
            }
            Some(b'!') => skip_declaration(&tag[1..])?,
            Some(b'/') => tag.split_once('>').ok_or(AttachmentRefusal::NotInspectable)?.1,
            _ => {
                let (element, after) = element(tag)?;
                see(element)?;
                after
            }
        };
    }
    Ok(())
}

/// What the XML declaration says must be what the document is.
fn check_encoding(instruction: &str) -> Result<(), AttachmentRefusal> {
    if !instruction.starts_with("xml ") && !instruction.starts_with("xml\t") {
        return Ok(());
    }
    let instruction = instruction.to_ascii_lowercase();
    let Some((_, encoding)) = instruction.split_once("encoding") else { return Ok(()) };
    let is_plain = ["utf-8", "utf8", "us-ascii"].iter().any(|name| encoding.contains(name));
    if is_plain { Ok(()) } else { Err(AttachmentRefusal::NotInspectable) }
}

/// Skips a comment or literal text. A document type could define what other words stand for.
fn skip_declaration(tag: &str) -> Result<&str, AttachmentRefusal> {
    let after = tag.strip_prefix("--").and_then(|comment| comment.split_once("-->"));
    let after = after.or_else(|| tag.strip_prefix("[CDATA[").and_then(|text| text.split_once("]]>")));
    after.map(|(_, after)| after).ok_or(AttachmentRefusal::NotInspectable)
}

/// Reads a start tag from behind its `<`; answers what follows its `>`.
fn element(tag: &str) -> Result<(StartTag<'_>, &str), AttachmentRefusal> {
    let name_end = tag.find(|c| is_space(c) || matches!(c, '/' | '>')).ok_or(AttachmentRefusal::NotInspectable)?;
    let (name, mut rest) = tag.split_at(name_end);
    let mut attributes = Vec::new();
    loop {
        rest = rest.trim_start_matches(is_space);
        if let Some(after) = rest.strip_prefix('>').or_else(|| rest.strip_prefix("/>")) {
            return Ok((StartTag { name: local(name), attributes }, after));
        }
        let (attribute, after) = rest.split_once('=').ok_or(AttachmentRefusal::NotInspectable)?;
        let attribute = attribute.trim_end_matches(is_space);
        let after = after.trim_start_matches(is_space);
        let quote =
            after.chars().next().filter(|c| matches!(c, '"' | '\'')).ok_or(AttachmentRefusal::NotInspectable)?;
        let (value, after) = after[1..].split_once(quote).ok_or(AttachmentRefusal::NotInspectable)?;
        // A name that is none, or a value that is not well formed, is read in different ways.
        if attribute.is_empty() || attribute.contains(|c| is_space(c) || "<>\"'/".contains(c)) || value.contains('<') {
            return Err(AttachmentRefusal::NotInspectable);
        }
        if attributes.len() >= ATTRIBUTES_MAX {
            return Err(AttachmentRefusal::NotInspectable);
        }
        attributes.push((local(attribute), value));
        rest = after;
    }
}

/// The name without the prefix of its namespace: a prefix can be any word.
fn local(name: &str) -> &str {
    name.rsplit_once(':').map_or(name, |(_, local)| local)
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}
