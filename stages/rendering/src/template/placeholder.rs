//! Stands in for Liquid while HTML is read: every single tag and output becomes a word that means nothing to HTML, in
//! text, in attributes and between table rows alike, so that the HTML tools neither see nor move any Liquid.

use super::scan::{Item, ItemKind};

/// The words and what they stand for.
pub(super) struct Placeholders {
    prefix: String,
    table: Vec<Vec<Item>>,
}

/// A piece of a document with placeholders.
pub(super) enum Segment<'d> {
    Text(&'d str),
    Id(usize),
}

impl Placeholders {
    /// The document of these items, and the words in it. The words occur nowhere in the source.
    pub(super) fn document(items: &[Item]) -> (Self, String) {
        let occurs = |prefix: &str| {
            items
                .iter()
                .any(|item| matches!(&item.kind, ItemKind::Text(text) if text.to_ascii_lowercase().contains(prefix)))
        };
        // `q` stands only at the start, so that no text before a word can overlap with it.
        let prefix = (0u32..).map(|number| format!("qz{number}x")).find(|prefix| !occurs(prefix)).unwrap_or_default();
        let mut placeholders = Self { prefix, table: Vec::new() };
        let mut document = String::new();
        for item in items {
            match &item.kind {
                ItemKind::Text(text) => document.push_str(text),
                _ => document.push_str(&placeholders.add(vec![item.clone()])),
            }
        }
        (placeholders, document)
    }

    /// A word for these items.
    pub(super) fn add(&mut self, items: Vec<Item>) -> String {
        self.table.push(items);
        format!("{}{}e", self.prefix, self.table.len() - 1)
    }

    pub(super) fn occur_in(&self, text: &str) -> bool {
        text.contains(&self.prefix)
    }

    pub(super) fn get(&self, id: usize) -> &[Item] {
        self.table.get(id).map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn get_mut(&mut self, id: usize) -> Option<&mut Vec<Item>> {
        self.table.get_mut(id)
    }

    /// Text and words in order.
    pub(super) fn segments<'d>(&self, document: &'d str) -> Vec<Segment<'d>> {
        let mut segments = Vec::new();
        let mut rest = document;
        while let Some(start) = rest.find(&self.prefix) {
            let (before, from) = rest.split_at(start);
            if !before.is_empty() {
                segments.push(Segment::Text(before));
            }
            let word = from.get(self.prefix.len()..).unwrap_or_default();
            let digits = word.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(word.len());
            if let Some(id) = word.get(..digits).and_then(|digits| digits.parse().ok()) {
                segments.push(Segment::Id(id));
            }
            rest = word.get(digits + 1..).unwrap_or_default();
        }
        if !rest.is_empty() {
            segments.push(Segment::Text(rest));
        }
        segments
    }

    /// The items a document stands for.
    pub(super) fn items(&self, document: &str) -> Vec<Item> {
        let mut items = Vec::new();
        for segment in self.segments(document) {
            match segment {
                Segment::Text(text) => items.push(Item::text(text)),
                Segment::Id(id) => items.extend_from_slice(self.get(id)),
            }
        }
        items
    }
}
