//! Hides small counts: a count under five says something about single people.
//!
//! Of counts that add up to a known total, one more is hidden where subtraction would reveal the first.

use serde_json::{Map, Value, json};

/// The smallest count that is shown.
const SHOWN_MIN: i64 = 5;
/// Written where a count is too small.
const SMALL: &str = "<5";
/// Written where a count would reveal a small one.
const WITHHELD: &str = "withheld";

/// A count without a total.
pub(crate) fn count(number: i64) -> Value {
    if number < SHOWN_MIN { json!(SMALL) } else { json!(number) }
}

/// A part of `whole`, which is a count [as it is shown](count): of a hidden whole no part is shown, because parts and their rates would
/// reveal it. Also withheld if the rest is small: subtraction would reveal the rest; and if it is more than the whole, which then lacks a
/// small count.
pub(crate) fn share(part: i64, whole: &Value) -> Value {
    if part < SHOWN_MIN {
        return json!(SMALL);
    }
    match whole.as_i64() {
        Some(whole) if whole == part || whole - part >= SHOWN_MIN => json!(part),
        _ => json!(WITHHELD),
    }
}

/// What was handed to a server, as counts are shown: what it took, and of the failed what it refused, which is among the bounced. Mail that
/// was not rendered or ran out of time never left. A small number of refusals is left out.
pub(crate) fn attempted(sent: &Value, failed: &Value, bounced: i64) -> Value {
    match (sent.as_i64(), failed.as_i64()) {
        (Some(sent), Some(failed)) => json!(sent + failed.min(bounced)),
        (Some(sent), None) if failed == SMALL => json!(sent),
        _ => json!(WITHHELD),
    }
}

/// The share as a fraction; null where the count is not shown.
pub(crate) fn rate(part: i64, whole: &Value) -> Value {
    let (Some(part), Some(whole)) = (share(part, whole).as_i64(), whole.as_i64()) else { return Value::Null };
    #[allow(clippy::cast_precision_loss, reason = "counts of mails are far below 2^52")]
    let fraction = part as f64 / whole as f64;
    json!((fraction * 10_000.0).round() / 10_000.0)
}

/// Counts that add up to a known total. If the hidden ones add up to a small number, the next smallest is hidden, too.
pub(crate) fn parts<'a>(parts: impl IntoIterator<Item = (&'a str, i64)>) -> Map<String, Value> {
    let mut parts: Vec<(&str, i64)> = parts.into_iter().collect();
    parts.sort_by_key(|(_, number)| *number);
    let mut hidden = 0;
    let mut shown = Map::new();
    for (name, number) in parts {
        let value = if number < SHOWN_MIN {
            json!(SMALL)
        } else if (1..SHOWN_MIN).contains(&hidden) {
            json!(WITHHELD)
        } else {
            json!(number)
        };
        if !value.is_number() {
            hidden += number;
        }
        shown.insert(name.to_owned(), value);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(0, json!("<5"))]
    #[case(4, json!("<5"))]
    #[case(5, json!(5))]
    fn a_count_under_five_is_not_shown(#[case] number: i64, #[case] shown: Value) {
        assert_eq!(count(number), shown);
    }

    #[rstest]
    #[case(3, json!(100), json!("<5"), Value::Null)]
    #[case(96, json!(100), json!("withheld"), Value::Null)]
    #[case(100, json!(100), json!(100), json!(1.0))]
    #[case(50, json!(100), json!(50), json!(0.5))]
    #[case(0, json!("<5"), json!("<5"), Value::Null)]
    #[case(102, json!(100), json!("withheld"), Value::Null)]
    #[case(50, json!("withheld"), json!("withheld"), Value::Null)]
    fn a_share_is_hidden_when_it_the_rest_or_the_whole_is(
        #[case] part: i64,
        #[case] whole: Value,
        #[case] shown: Value,
        #[case] fraction: Value,
    ) {
        assert_eq!((share(part, &whole), rate(part, &whole)), (shown, fraction));
    }

    #[rstest]
    #[case(json!(900), json!(100), 100, json!(1000))]
    #[case(json!(900), json!(100), 200, json!(1000))]
    #[case::not_all_were_refused(json!(900), json!(100), 30, json!(930))]
    #[case(json!(900), json!("<5"), 30, json!(900))]
    #[case(json!(900), json!("withheld"), 30, json!("withheld"))]
    #[case(json!("<5"), json!(100), 100, json!("withheld"))]
    fn what_was_attempted_reveals_no_hidden_count(
        #[case] sent: Value,
        #[case] failed: Value,
        #[case] bounced: i64,
        #[case] shown: Value,
    ) {
        assert_eq!(attempted(&sent, &failed, bounced), shown);
    }

    #[test]
    fn a_hidden_part_cannot_be_subtracted() {
        // Total 62: with 20 and 40 shown, the hidden one would be 2.
        let shown = parts([("sent", 40), ("failed", 2), ("skipped", 20)]);
        assert_eq!(Value::Object(shown), json!({"sent": 40, "failed": "<5", "skipped": "withheld"}));
        // Two small ones hide each other when they come to five or more.
        let shown = parts([("sent", 40), ("failed", 3), ("skipped", 4)]);
        assert_eq!(Value::Object(shown), json!({"sent": 40, "failed": "<5", "skipped": "<5"}));
        let shown = parts([("sent", 40), ("failed", 0)]);
        assert_eq!(Value::Object(shown), json!({"sent": 40, "failed": "<5"}));
    }
}
