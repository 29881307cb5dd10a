//! Cuts a part's items into static text and runs of Liquid that each become one slot.

use schemas::LinkToken;

use super::scan::{Item, ItemKind};
use super::structure::{closes, opens};
use super::syntax::{Block, LiquidTag};

/// Static text this short between two runs joins them: a slot of its own costs more.
const JOINED_BYTES: usize = 12;

/// A piece of a part.
#[derive(Debug)]
pub(super) enum PartSegment {
    Text(String),
    /// An address of ours, which follows from the send.
    Address(LinkToken),
    Slot(Vec<Item>),
}

/// The segments of a part whose structure has been checked. `address` recognises the items outside of blocks that are an address of ours.
pub(super) fn segments(items: Vec<Item>, address: impl Fn(&Item) -> Option<LinkToken>) -> Vec<PartSegment> {
    let mut cutter = Cutter::default();
    let mut items = items.into_iter().peekable();
    while let Some(item) = items.next() {
        match address(&item).filter(|_| cutter.open.is_empty()) {
            Some(token) => {
                cutter.flush();
                cutter.done.push(PartSegment::Address(token));
            }
            None => {
                let is_fixed = |next: &Item| matches!(next.kind, ItemKind::Text(_)) || address(next).is_some();
                let is_fixed_next = items.peek().is_none_or(is_fixed);
                cutter.push(item, is_fixed_next);
            }
        }
    }
    cutter.flush();
    cutter.done
}

#[derive(Default)]
struct Cutter {
    done: Vec<PartSegment>,
    run: Vec<Item>,
    /// Whether the run prints anything, as far as is known.
    prints: bool,
    /// Assignments that wait for the next run that prints: they need no slot of their own.
    silent: Vec<Item>,
    open: Vec<Block>,
}

impl Cutter {
    fn push(&mut self, item: Item, is_fixed_next: bool) {
        if self.open.is_empty()
            && let ItemKind::Text(text) = &item.kind
        {
            let joins = self.prints && text.len() < JOINED_BYTES && !text.contains('\n') && !is_fixed_next;
            if joins {
                self.run.push(item);
            } else {
                self.flush();
                self.text(text);
            }
            return;
        }
        let captures = self.open.contains(&Block::Capture) || opens(&item) == Some(Block::Capture);
        if let Some(block) = opens(&item) {
            self.open.push(block);
        } else if closes(&item).is_some() {
            self.open.pop();
        }
        self.prints |= !captures && !matches!(&item.kind, ItemKind::Tag(LiquidTag::Assign(..)));
        self.run.push(item);
    }

    fn text(&mut self, text: &str) {
        match self.done.last_mut() {
            Some(PartSegment::Text(before)) => before.push_str(text),
            _ => self.done.push(PartSegment::Text(text.to_owned())),
        }
    }

    fn flush(&mut self) {
        self.silent.append(&mut self.run);
        if self.prints {
            self.done.push(PartSegment::Slot(std::mem::take(&mut self.silent)));
            self.prints = false;
        }
    }
}
