//! Blocks of Liquid in HTML: where they may begin and end, and what their branches leave open.

use super::super::fault::{FaultCode, Part, Problem, TemplateFault};
use super::super::scan::{Item, ItemKind, Place, Shown};
use super::super::structure::{closes, divides, opens};
use super::super::syntax::{Block, LiquidTag};
use super::{Open, Rewriter, Spot};

impl Rewriter<'_> {
    /// Takes note of one tag or output of Liquid.
    pub(super) fn item(&mut self, id: usize, spot: Spot, place: Place) -> Result<(), TemplateFault> {
        let Some(item) = self.placeholders.get(id).first().cloned() else { return Ok(()) };
        let fault = |problem: Problem| problem.at(Part::BodyHtml, item.at);
        let refused = |detail: &str| fault(Problem::new(FaultCode::HtmlInvalid, detail));
        if let Some(block) = opens(&item) {
            let branch = self.new_branch();
            let base = self.elements.len();
            self.blocks.push(Open { block, spot, base, branch, left: Vec::new(), has_else: false });
            return Ok(());
        }
        let is_close = closes(&item).is_some();
        let is_divide = divides(&item);
        if is_close || is_divide {
            let branch = self.new_branch();
            let Some(open) = self.blocks.last_mut() else { return Ok(()) };
            if open.spot != spot {
                return Err(refused(
                    "a block must begin and end at the same place of the HTML: in text, or in the value of one attribute",
                ));
            }
            let left = self.elements.opened_from(open.base);
            self.budget.take_steps(left.len() as u64).map_err(|spent| fault(spent.into()))?;
            if matches!(open.block, Block::For | Block::Capture) && !self.elements.end_by_themselves(open.base) {
                return Err(refused("an element that is opened inside `for` or `capture` must be closed inside it"));
            }
            let is_case_start = open.block == Block::Case && open.left.is_empty() && !open.has_else;
            if is_divide {
                open.has_else |= matches!(&item.kind, ItemKind::Tag(LiquidTag::Else));
                if is_case_start {
                    // What stands between `case` and its first `when` is never shown.
                    self.elements.truncate(open.base);
                    open.left.push(Vec::new());
                } else {
                    open.left.push(left);
                }
                open.branch = branch;
                open.base = self.elements.len();
                return Ok(());
            }
            let opened = left.len() + open.left.iter().map(Vec::len).sum::<usize>();
            self.elements.doubt(self.elements.len().saturating_sub(opened));
            let branches = open.left.get(usize::from(open.block == Block::Case)..).unwrap_or_default();
            // Branches that all leave the same open count once.
            if open.has_else && branches.iter().all(|other| *other == left) {
                self.elements.remove_last(left.len() * branches.len());
            }
            self.blocks.pop();
            return Ok(());
        }
        match &item.kind {
            ItemKind::Tag(LiquidTag::Break | LiquidTag::Continue) => {
                let open = self.blocks.iter().rev().find(|open| open.block == Block::For);
                let is_clean = open.is_none_or(|open| open.spot == spot && self.elements.end_by_themselves(open.base));
                if is_clean && self.view.region.is_none() {
                    Ok(())
                } else {
                    Err(refused("`break` and `continue` cannot stand inside an element or a conditional comment"))
                }
            }
            ItemKind::Output { chain, shows, .. } => {
                if place == Place::Text
                    && *shows == Some(Shown::PhysicalAddress)
                    && self.is_plain()
                    && !self.is_captured()
                {
                    self.shown.push((id, Shown::PhysicalAddress));
                }
                let kind = ItemKind::Output { chain: chain.clone(), place, shows: None };
                if let Some(items) = self.placeholders.get_mut(id) {
                    *items = vec![Item { kind, at: item.at }];
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
