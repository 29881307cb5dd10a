//! Attributes' values: tracked links, and addresses and styles that come from values.

use htmlize::unescape_attribute;

use super::super::address;
use super::super::escape::{has_prefix, is_web_address};
use super::super::fault::TemplateFault;
use super::super::markup::Attribute;
use super::super::program::own_page;
use super::super::scan::{AddressKind, Item, ItemKind, Special};
use super::super::structure::is_balanced;
use super::Rewriter;

impl Rewriter<'_> {
    /// Has the output behind a word checked for addresses when it is rendered.
    pub(super) fn guard(&mut self, id: usize) {
        let Some(items) = self.placeholders.get_mut(id) else { return };
        if items.iter().any(|item| item.output().is_some()) {
            let target = std::mem::take(items);
            items.push(Item::special(Special::Address { kind: AddressKind::Sheet, target }));
        }
    }

    /// Drops an attribute and the space before it.
    pub(super) fn leave_out(&mut self, attribute: &Attribute<'_>) {
        let before = self.document.get(..attribute.name.start).unwrap_or_default().trim_end().len();
        self.copy(before.max(self.copied));
        self.copied = attribute.value.end().max(attribute.name.end()) + usize::from(attribute.quote.is_some());
    }

    /// Writes an attribute's value: a tracked link, a checked address, or in quotes.
    pub(super) fn value(
        &mut self,
        element: &str,
        name: &str,
        attribute: &Attribute<'_>,
        is_tracked: bool,
    ) -> Result<(), TemplateFault> {
        let value = attribute.value.text;
        let kind = AddressKind::of(element, name);
        let is_dynamic = self.placeholders.occur_in(value);
        let may_be_tracked = is_tracked && kind == Some(AddressKind::Link);
        if !is_dynamic && !may_be_tracked {
            return Ok(());
        }
        let target = self.placeholders.items(value);
        let has_output = target.iter().any(|item| item.output().is_some());
        if has_output && (name.starts_with("on") || name == "srcdoc") {
            return Err(self.refused(attribute.name.start, format!("a value cannot stand in `{name}`")));
        }
        if may_be_tracked
            && self.links < u16::MAX
            && let Some(link) = tracked(&target, self.links)
        {
            self.links += 1;
            let word = self.placeholders.add(vec![Item::special(link)]);
            self.write_value(attribute, &word);
            return Ok(());
        }
        let kind = kind.filter(|kind| *kind == AddressKind::Style || (has_output && needs_guard(*kind, &target)));
        if let Some(kind) = kind {
            let word = self.placeholders.add(vec![Item::special(Special::Address { kind, target })]);
            self.write_value(attribute, &word);
        } else if is_dynamic && attribute.quote.is_none() {
            // An unquoted value would end at the first space of what is put in.
            self.write_value(attribute, &value.replace('"', "&quot;"));
        }
        Ok(())
    }

    fn write_value(&mut self, attribute: &Attribute<'_>, value: &str) {
        self.copy(attribute.value.start);
        let quote = if attribute.quote.is_some() { "" } else { "\"" };
        self.out.extend([quote, value, quote]);
        self.copied = attribute.value.end();
    }
}

/// Whether a value can decide where an address leads, or what a style loads. Pages of ours are what they are.
fn needs_guard(kind: AddressKind, target: &[Item]) -> bool {
    let is_one = matches!(kind, AddressKind::Link | AddressKind::Source);
    match target {
        [item] if item.output().is_some_and(|chain| own_page(chain).is_some()) => false,
        [Item { kind: ItemKind::Text(text), .. }, ..] if is_one => !address::has_own_scheme(&unescape_attribute(text)),
        _ => true,
    }
}

/// A tracked link with this target. `None`: not a link to track. A link whose host comes from a value is not:
/// the author of the value would borrow our name for any place.
fn tracked(target: &[Item], link: u16) -> Option<Special> {
    if let [Item { kind: ItemKind::Text(text), .. }] = target {
        let url = unescape_attribute(text).trim().to_owned();
        return is_web_address(&url).then_some(Special::Click { link, url });
    }
    let has_output = target.iter().any(|item| item.output().is_some());
    let has_own_host = match target.first().map(|item| &item.kind) {
        Some(ItemKind::Text(text)) => address::has_own_host(&unescape_attribute(text)),
        _ => false,
    };
    if !may_be_web_address(target) || !is_balanced(target) || (has_output && !has_own_host) {
        return None;
    }
    Some(Special::Link { link, target: target.to_vec() })
}

/// Whether a target that is rendered can turn out to be a web address, judging by how it begins.
pub(in super::super) fn may_be_web_address(target: &[Item]) -> bool {
    let has_quotes = target.iter().any(|item| matches!(&item.kind, ItemKind::Text(text) if text.contains(['"', '\''])));
    let begins = match target.first().map(|item| &item.kind) {
        Some(ItemKind::Text(text)) => {
            let text = unescape_attribute(text);
            let text = text.trim_start();
            text.is_empty() || is_web_address(text) || has_prefix("https://", text) || has_prefix("http://", text)
        }
        Some(_) => true,
        None => false,
    };
    begins && !has_quotes
}
