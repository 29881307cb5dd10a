//! Values, as filters take and make them, and what looking at one costs.

use liquid::model::{Value, ValueCow, ValueView};
use runtime::{Budget, Spent};

use super::fault::RenderFault;
use super::limits::{VALUE_DEPTH, text_steps};

/// What a filter makes of a value. It fails with [`RenderFault::Filter`].
pub(super) type FilterResult = Result<Value, RenderFault>;

/// A filter's work: the input and its evaluated arguments.
pub(super) type Run = fn(&dyn ValueView, &[ValueCow<'_>]) -> FilterResult;

/// Bytes an item takes beside its text.
const ITEM_BYTES: usize = 16;

/// Charges for looking at a whole value. Answers roughly how many bytes it holds.
pub(super) fn weigh(value: &dyn ValueView, budget: &Budget) -> Result<usize, Spent> {
    weigh_at(value, budget, 0)
}

fn weigh_at(value: &dyn ValueView, budget: &Budget, depth: u32) -> Result<usize, Spent> {
    if depth > VALUE_DEPTH {
        return Err(Spent::Depth);
    }
    let mut bytes = 0;
    if let Some(array) = value.as_array() {
        budget.take_steps(1)?;
        for item in array.values() {
            bytes += ITEM_BYTES + weigh_at(item, budget, depth + 1)?;
        }
    } else if let Some(object) = value.as_object() {
        budget.take_steps(1)?;
        for (key, item) in object.iter() {
            budget.take_steps(text_steps(key.len()))?;
            bytes += ITEM_BYTES + key.len() + weigh_at(item, budget, depth + 1)?;
        }
    } else {
        bytes = value.to_kstr().len();
        budget.take_steps(text_steps(bytes))?;
    }
    Ok(bytes)
}
