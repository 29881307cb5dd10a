//! Reading what a name server answered: a stranger's bytes, with bounds.

use std::time::Duration;

use runtime::{Budget, Limits, Spent};

/// Most records of one answer that are looked at.
const RECORDS_MAX: u64 = 100;
/// Steps of one record, beside those for its bytes.
const RECORD_STEPS: u64 = 64;
/// The bounds of reading the answer to one question and comparing it with what should be there. The longest record we ask for, an
/// RSA-4096 key, has some 750 bytes.
pub(super) const LIMITS: Limits = Limits {
    input_bytes: 16 * 1024,
    held_bytes: 64 * 1024,
    depth: 1,
    steps: RECORDS_MAX * RECORD_STEPS + 16 * 16 * 1024,
    time: Duration::from_secs(1),
};

/// The texts of TXT records: the strings of one record belong together without anything between them (RFC 7208 §3.3, RFC 6376
/// §3.6.2.2). What is no UTF-8 is replaced.
///
/// # Errors
/// When the answer passes a bound.
pub(super) fn texts<'a, Strings>(
    records: impl IntoIterator<Item = Strings>,
    budget: &Budget,
) -> Result<Vec<String>, Spent>
where
    Strings: IntoIterator<Item = &'a [u8]>,
{
    let mut texts = Vec::new();
    for (count, strings) in (1_u64..).zip(records) {
        budget.take_steps(RECORD_STEPS)?;
        if count > RECORDS_MAX {
            return Err(Spent::Steps);
        }
        let mut bytes = Vec::new();
        for string in strings {
            budget.take_input(string.len())?;
            budget.take_steps(1 + string.len() as u64)?;
            // Once as bytes, and as text, where a byte that is no UTF-8 becomes three.
            budget.hold(string.len().saturating_mul(4))?;
            bytes.extend_from_slice(string);
        }
        texts.push(String::from_utf8_lossy(&bytes).into_owned());
    }
    Ok(texts)
}
