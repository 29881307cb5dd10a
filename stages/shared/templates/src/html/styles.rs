//! Styles: none may crop, hide or move the end of the body.

use htmlize::unescape_attribute;

use super::super::fault::TemplateFault;
use super::super::limits::text_steps;
use super::super::markup::{Attribute, HtmlTag};
use super::super::sheet;
use super::Rewriter;

impl Rewriter<'_> {
    /// Checks the style sheet of a `style` element that begins at this byte.
    pub(super) fn check_sheet(&mut self, text: &str, start: usize) -> Result<(), TemplateFault> {
        self.charge(text_steps(text.len()), start)?;
        if self.styles.is_none() {
            return Ok(());
        }
        let suspects = sheet::check(text, &self.placeholders);
        let suspects = suspects.map_err(|fault| self.refused(start + fault.at, fault.why.to_string()))?;
        let styles = self.styles.get_or_insert_default();
        for mut suspect in suspects {
            suspect.at += start;
            styles.suspects.push(suspect);
        }
        Ok(())
    }

    /// Checks a `style` attribute. What it becomes with values in it is checked when it is rendered.
    pub(super) fn check_style(&self, attribute: &Attribute<'_>, of_root: bool) -> Result<(), TemplateFault> {
        let value = attribute.value.text;
        self.charge(text_steps(value.len()), attribute.name.start)?;
        if self.styles.is_none() {
            return Ok(());
        }
        if self.placeholders.occur_in(value) {
            if of_root {
                let detail = "the style of `html` and `body` cannot come from a value";
                return Err(self.refused(attribute.name.start, detail));
            }
            return Ok(());
        }
        sheet::check_inline(&unescape_attribute(value), of_root)
            .map_err(|why| self.refused(attribute.name.start, why.to_string()))
    }

    /// Refuses what brings in styles that cannot be checked, and what switches off the footer's own.
    pub(super) fn check_loads(&self, tag: &HtmlTag<'_>, name: &str) -> Result<(), TemplateFault> {
        if self.styles.is_none() || !matches!(name, "link" | "meta") {
            return Ok(());
        }
        let has = |attribute_name: &str, is_so: &dyn Fn(&str) -> bool| {
            tag.attributes.iter().filter(|attribute| self.name_of(attribute) == attribute_name).any(|attribute| {
                let value = attribute.value.text;
                self.placeholders.occur_in(value) || is_so(&unescape_attribute(value).to_ascii_lowercase())
            })
        };
        let why = if name == "link" {
            let is_sheet = has("rel", &|rel| rel.contains("stylesheet"));
            let is_other = has("href", &|href| !sheet::is_font_address(href));
            (is_sheet && is_other).then(|| sheet::StyleFaultReason::Import.to_string())
        } else {
            has("http-equiv", &|header| header.contains("security-policy"))
                .then(|| "a security policy cannot be set in a template".to_owned())
        };
        why.map_or(Ok(()), |why| Err(self.refused(tag.span.start, why)))
    }

    /// Keeps an attribute of `html` or `body`, for the rules that name it.
    pub(super) fn note_root(&mut self, name: String, attribute: &Attribute<'_>) {
        let value = attribute.value.text;
        let is_known = !self.placeholders.occur_in(value);
        let Some(styles) = &mut self.styles else { return };
        styles.checked = 0;
        let known = styles.roots.entry(name).or_insert_with(|| Some(String::new()));
        match known {
            Some(values) if is_known => values.push_str(&sheet::words(&unescape_attribute(value))),
            _ => *known = None,
        }
    }

    /// Refuses the first rule that turns out to be one for `html` or `body`.
    pub(super) fn check_suspects(&mut self) -> Result<(), TemplateFault> {
        let Some(styles) = &self.styles else { return Ok(()) };
        let roots: usize = styles.roots.values().flatten().map(String::len).sum();
        for suspect in styles.suspects.iter().skip(styles.checked) {
            self.charge(text_steps(roots).saturating_mul(suspect.size() as u64), suspect.at)?;
            if suspect.matches(&styles.roots) {
                return Err(self.refused(suspect.at, sheet::StyleFaultReason::Root.to_string()));
            }
        }
        if let Some(styles) = &mut self.styles {
            styles.checked = styles.suspects.len();
        }
        Ok(())
    }
}
