//! Checks that blocks open, divide and close as they should, and turns the flat list of items into a tree.

use super::fault::{FaultCode, Part, Position, Problem, TemplateFault};
use super::limits::{BLOCK_DEPTH, BRANCHES, FAULTS, LOOP_DEPTH};
use super::scan::{Item, ItemKind};
use super::syntax::{Block, LiquidTag};

/// The block an item opens, if it opens one.
pub(super) fn opens(item: &Item) -> Option<Block> {
    match &item.kind {
        ItemKind::Tag(LiquidTag::If(_)) => Some(Block::If),
        ItemKind::Tag(LiquidTag::Unless(_)) => Some(Block::Unless),
        ItemKind::Tag(LiquidTag::Case(_)) => Some(Block::Case),
        ItemKind::Tag(LiquidTag::For(_)) => Some(Block::For),
        ItemKind::Tag(LiquidTag::Capture(_)) => Some(Block::Capture),
        _ => None,
    }
}

/// The block an item closes, if it closes one.
pub(super) fn closes(item: &Item) -> Option<Block> {
    match &item.kind {
        ItemKind::Tag(LiquidTag::End(block)) => Some(*block),
        _ => None,
    }
}

/// Whether an item divides a block into branches.
pub(super) fn divides(item: &Item) -> bool {
    matches!(&item.kind, ItemKind::Tag(LiquidTag::Else | LiquidTag::Elsif(_) | LiquidTag::When(_)))
}

/// Whether the item steers (a tag of any kind) rather than shows something.
pub(super) fn is_control(item: &Item) -> bool {
    matches!(&item.kind, ItemKind::Tag(_))
}

/// Whether these items open, divide and close blocks only among themselves.
pub(super) fn is_balanced(items: &[Item]) -> bool {
    let mut open = Vec::new();
    items.iter().all(|item| match (opens(item), closes(item)) {
        (Some(block), _) => {
            open.push(block);
            true
        }
        (None, Some(block)) => open.pop() == Some(block),
        (None, None) => !(divides(item) && open.is_empty()),
    }) && open.is_empty()
}

struct Open {
    block: Block,
    at: Position,
    has_else: bool,
    branches: usize,
}

/// Every structural fault of a part.
pub(super) fn faults(part: Part, items: &[Item]) -> Vec<TemplateFault> {
    let mut open: Vec<Open> = Vec::new();
    let mut faults = Vec::new();
    for item in items {
        if faults.len() >= FAULTS {
            break;
        }
        if let Err(problem) = step(&mut open, item) {
            let too_deep = problem.code == FaultCode::NestingTooDeep;
            faults.push(problem.at(part, item.at));
            // One message for a tower of blocks, not one per storey.
            if too_deep {
                return faults;
            }
        }
    }
    for unclosed in open {
        let detail = format!("`{0}` is never closed by `end{0}`", unclosed.block.as_str());
        faults.push(Problem::new(FaultCode::UnclosedBlock, detail).at(part, unclosed.at));
    }
    faults.truncate(FAULTS);
    faults
}

fn step(open: &mut Vec<Open>, item: &Item) -> Result<(), Problem> {
    if let Some(block) = opens(item) {
        open.push(Open { block, at: item.at, has_else: false, branches: 0 });
        if open.len() > BLOCK_DEPTH {
            let detail = format!("blocks are nested more than {BLOCK_DEPTH} deep");
            return Err(Problem::new(FaultCode::NestingTooDeep, detail));
        }
        if block == Block::For && open.iter().filter(|outer| outer.block == Block::For).count() > LOOP_DEPTH {
            let detail = format!("`for` is nested more than {LOOP_DEPTH} deep");
            return Err(Problem::new(FaultCode::NestingTooDeep, detail));
        }
        return Ok(());
    }
    if let Some(block) = closes(item) {
        if open.pop_if(|last| last.block == block).is_some() {
            return Ok(());
        }
        let block = block.as_str();
        return Err(unexpected(match open.last() {
            Some(last) => format!("`end{block}` found where `end{}` is expected", last.block.as_str()),
            None => format!("`end{block}` closes no `{block}`"),
        }));
    }
    match &item.kind {
        ItemKind::Tag(LiquidTag::Else) => {
            divided(open, "else", &[Block::If, Block::Unless, Block::Case, Block::For])?.has_else = true;
            Ok(())
        }
        ItemKind::Tag(LiquidTag::Elsif(_)) => branch(open, "elsif", &[Block::If, Block::Unless]),
        ItemKind::Tag(LiquidTag::When(_)) => branch(open, "when", &[Block::Case]),
        ItemKind::Tag(LiquidTag::Break | LiquidTag::Continue)
            if !open.iter().any(|outer| outer.block == Block::For) =>
        {
            Err(unexpected("`break` and `continue` are for use inside `for`"))
        }
        _ => Ok(()),
    }
}

fn branch(open: &mut [Open], name: &str, blocks: &[Block]) -> Result<(), Problem> {
    let divided = divided(open, name, blocks)?;
    divided.branches += 1;
    if divided.branches > BRANCHES {
        let detail = format!("more than {BRANCHES} branches in one block");
        return Err(Problem::new(FaultCode::NestingTooDeep, detail));
    }
    Ok(())
}

/// The block that a tag of this name divides, which must be one of these.
fn divided<'o>(open: &'o mut [Open], name: &str, blocks: &[Block]) -> Result<&'o mut Open, Problem> {
    let last = open.last_mut().filter(|last| blocks.contains(&last.block) && !last.has_else);
    last.ok_or_else(|| unexpected(format!("`{name}` belongs to no block")))
}

fn unexpected(detail: impl Into<String>) -> Problem {
    Problem::new(FaultCode::UnexpectedTag, detail)
}
