//! JSON within a budget: its length, depth and values are counted before anything is built of it.

use runtime::{Budget, Spent};
use serde_json::Value;

use super::Malformed;

/// What a value costs at most in memory, beside its text.
const VALUE_BYTES: usize = 96;
/// Octets counted at one time.
const PIECE: usize = 1_024;

pub(super) const NOT_JSON: Malformed = Malformed("not_json");

pub(super) fn read(text: &[u8], budget: &Budget) -> Result<Value, Malformed> {
    weigh(text, budget)?;
    serde_json::from_slice(text).map_err(|_| NOT_JSON)
}

/// Charges for JSON what building it would take: a step for each octet, its depth, and room for each value. Text that is no JSON,
/// or breaks off, is charged alike.
pub(super) fn weigh(text: &[u8], budget: &Budget) -> Result<(), Spent> {
    let (mut levels, mut in_string, mut escaped) = (Vec::new(), false, false);
    for piece in text.chunks(PIECE) {
        budget.take_steps(piece.len() as u64)?;
        let mut values = 0;
        for octet in piece {
            match octet {
                _ if escaped => escaped = false,
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                _ if in_string => {}
                b'[' | b'{' => {
                    values += 1;
                    levels.push(budget.enter()?);
                }
                b']' | b'}' => drop(levels.pop()),
                b',' | b':' => values += 1,
                _ => {}
            }
        }
        budget.hold(piece.len() + values * VALUE_BYTES)?;
    }
    Ok(())
}
