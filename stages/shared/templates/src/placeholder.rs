//! Stands in for Liquid while HTML is read: every single tag and output becomes a word that means nothing to HTML, in
//! text, in attributes and between table rows alike, so that a reader of the HTML neither sees nor moves any Liquid.

use runtime::{Budget, Spent};

use super::fault::Position;
use super::limits::text_steps;
use super::scan::{Item, ItemKind};

/// The words and what they stand for.
pub(super) struct Placeholders {
    prefix: String,
    table: Vec<Vec<Item>>,
    /// Where each item begins in the document, where it stands in the source, and whether it is text.
    places: Vec<(usize, Position, bool)>,
}

/// A piece of a document with placeholders.
pub(super) enum DocumentSegment<'d> {
    Text(&'d str),
    Id(usize),
}

impl Placeholders {
    /// The document of these items, and the words in it. The words occur nowhere in the source.
    pub(super) fn document(items: &[Item], budget: &Budget) -> Result<(Self, String), Spent> {
        // Joined, since two texts may stand side by side.
        let mut texts = String::new();
        for item in items {
            match &item.kind {
                ItemKind::Text(text) => {
                    budget.take_steps(text_steps(text.len()))?;
                    budget.hold(text.len())?;
                    texts.push_str(text);
                }
                _ => texts.push(' '),
            }
        }
        let mut placeholders = Self::absent_from(&texts);
        let mut document = String::new();
        for item in items {
            placeholders.places.push((document.len(), item.at, matches!(item.kind, ItemKind::Text(_))));
            match &item.kind {
                ItemKind::Text(text) => document.push_str(text),
                _ => document.push_str(&placeholders.add(vec![item.clone()])),
            }
        }
        Ok((placeholders, document))
    }

    /// No words yet, and none that occurs in this text.
    pub(super) fn absent_from(text: &str) -> Self {
        Self { prefix: unused_prefix(text), table: Vec::new(), places: Vec::new() }
    }

    /// A word for these items.
    pub(super) fn add(&mut self, items: Vec<Item>) -> String {
        self.table.push(items);
        format!("{}{}e", self.prefix, self.table.len() - 1)
    }

    /// Where a byte of the document stands in the source.
    pub(super) fn position(&self, document: &str, at: usize) -> Position {
        let after = self.places.partition_point(|(start, ..)| *start <= at);
        let Some((start, place, is_text)) = after.checked_sub(1).and_then(|index| self.places.get(index)) else {
            return Position::START;
        };
        place.after(if *is_text { document.get(*start..at).unwrap_or_default() } else { "" })
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

    /// The word at the start of this text, and how long it is.
    pub(super) fn word(&self, text: &str) -> Option<(usize, usize)> {
        let word = text.strip_prefix(&self.prefix)?;
        let digits = word.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(word.len());
        Some((word.get(..digits)?.parse().ok()?, self.prefix.len() + digits + 1))
    }

    /// Text and words in order.
    pub(super) fn segments<'d>(&self, document: &'d str) -> Vec<DocumentSegment<'d>> {
        let mut segments = Vec::new();
        let mut rest = document;
        while let Some(start) = rest.find(&self.prefix)
            && let Some((id, length)) = rest.get(start..).and_then(|from| self.word(from))
        {
            if start > 0 {
                segments.push(DocumentSegment::Text(rest.get(..start).unwrap_or_default()));
            }
            segments.push(DocumentSegment::Id(id));
            rest = rest.get(start + length..).unwrap_or_default();
        }
        if !rest.is_empty() {
            segments.push(DocumentSegment::Text(rest));
        }
        segments
    }

    /// The words in a piece of the document.
    pub(super) fn ids(&self, document: &str) -> Vec<usize> {
        let ids = self.segments(document).into_iter().filter_map(|segment| match segment {
            DocumentSegment::Id(id) => Some(id),
            DocumentSegment::Text(_) => None,
        });
        ids.collect()
    }

    /// A piece of the document without its words.
    pub(super) fn without(&self, document: &str) -> String {
        let texts = self.segments(document).into_iter().filter_map(|segment| match segment {
            DocumentSegment::Text(text) => Some(text),
            DocumentSegment::Id(_) => None,
        });
        texts.collect()
    }

    /// The items a document stands for.
    pub(super) fn items(&self, document: &str) -> Vec<Item> {
        let mut items = Vec::new();
        for segment in self.segments(document) {
            match segment {
                DocumentSegment::Text(text) => items.push(Item::text(text)),
                DocumentSegment::Id(id) => items.extend_from_slice(self.get(id)),
            }
        }
        items
    }
}

/// How words can begin that stand in for something in this text: it occurs nowhere in it.
pub(super) fn unused_prefix(text: &str) -> String {
    // `q` stands only at the start, so that no text before a word can overlap with it.
    format!("qz{}x", highest_prefix(text).map_or(0, |highest| highest + 1))
}

/// The highest number between `qz` and `x` in a text, in any case. Longer numbers than any prefix has do not count.
fn highest_prefix(text: &str) -> Option<u64> {
    let number = |rest: &str| {
        // Nine digits at most: the document is shorter than so many words.
        let digits = rest.bytes().take(10).take_while(u8::is_ascii_digit).count();
        let ends = rest.as_bytes().get(digits) == Some(&b'x') && digits < 10;
        rest.get(..digits).filter(|_| ends)?.parse().ok()
    };
    text.to_ascii_lowercase().split("qz").skip(1).filter_map(number).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_is_found_in_one_pass() {
        for (text, highest) in [
            ("qz0xqz1xQZ17Xqz3x", Some(17)),
            ("qz x qzx qz5", None),
            ("qz99999999999x", None),
            ("qqz4x", Some(4)),
            ("qzqz2x", Some(2)),
        ] {
            assert_eq!(highest_prefix(text), highest, "{text}");
        }
    }
}
