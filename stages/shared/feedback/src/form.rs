//! Forms as providers post mail they took in: `multipart/form-data` or `application/x-www-form-urlencoded`, perhaps broken off where
//! the attachments begin. Only the fields asked for are kept.

use std::collections::BTreeMap;

use memchr::memmem;
use runtime::{Budget, Spent};
use url::form_urlencoded;

/// Parts that are looked at; a mail's own fields come before its files.
const PARTS_MAX: usize = 200;
/// The longest head of a part.
const HEAD_MAX: usize = 4_096;

/// The fields of these names that are whole, each the first of its name.
pub fn fields<'a>(raw: &[u8], names: &[&'a str], budget: &Budget) -> Result<BTreeMap<&'a str, String>, Spent> {
    if raw.starts_with(b"--") { of_parts(raw, names, budget) } else { of_pairs(raw, names, budget) }
}

/// Whether it begins like a form, and not like JSON.
pub fn is_form(raw: &[u8]) -> bool {
    !matches!(raw.iter().find(|byte| !byte.is_ascii_whitespace()), None | Some(b'{' | b'['))
}

fn of_pairs<'a>(raw: &[u8], names: &[&'a str], budget: &Budget) -> Result<BTreeMap<&'a str, String>, Spent> {
    let mut found = BTreeMap::new();
    for pair in raw.split(|byte| *byte == b'&') {
        budget.take_steps(pair.len() as u64 + 1)?;
        let Some((name, value)) = form_urlencoded::parse(pair).next() else { continue };
        let Some(name) = names.iter().find(|known| name == **known) else { continue };
        if !found.contains_key(name) {
            budget.hold(value.len())?;
            found.insert(*name, value.into_owned());
        }
    }
    Ok(found)
}

/// The boundary is the first line (RFC 2046 §5.1.1; a form has no preamble).
fn of_parts<'a>(raw: &[u8], names: &[&'a str], budget: &Budget) -> Result<BTreeMap<&'a str, String>, Spent> {
    let mut found = BTreeMap::new();
    let Some(boundary) = find(raw, b"\r\n", budget)?.filter(|end| (3..=80).contains(end)).map(|end| &raw[..end]) else {
        return Ok(found);
    };
    let delimiter = [b"\r\n", boundary].concat();
    let mut rest = &raw[boundary.len()..];
    for _ in 0..PARTS_MAX {
        let Some(head_end) = find(&rest[..rest.len().min(HEAD_MAX)], b"\r\n\r\n", budget)? else { break };
        let (head, body) = (String::from_utf8_lossy(&rest[..head_end]).into_owned(), &rest[head_end + 4..]);
        let Some(end) = find(body, &delimiter, budget)? else { break };
        if let Some(name) = names.iter().find(|known| named(&head) == Some(**known))
            && !found.contains_key(name)
        {
            budget.hold(end)?;
            found.insert(*name, String::from_utf8_lossy(&body[..end]).into_owned());
        }
        rest = &body[end + delimiter.len()..];
    }
    Ok(found)
}

/// The field's name; `None` for a file.
fn named(head: &str) -> Option<&str> {
    let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with("content-disposition:"))?;
    if line.to_ascii_lowercase().contains("filename") {
        return None;
    }
    let (_, rest) = line.split_once("name=")?;
    let rest = rest.trim();
    Some(match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next().unwrap_or_default(),
        None => rest.split(';').next().unwrap_or_default().trim(),
    })
}

/// Where one text begins in another. Charges a step for each octet up to there.
fn find(text: &[u8], wanted: &[u8], budget: &Budget) -> Result<Option<usize>, Spent> {
    let found = memmem::find(text, wanted);
    budget.take_steps(found.map_or(text.len(), |at| at + 1) as u64)?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields<'a>(raw: &[u8], names: &[&'a str]) -> BTreeMap<&'a str, String> {
        super::fields(raw, names, &Budget::new(crate::provider::LIMITS)).unwrap()
    }

    const PARTS: &str = "--xYzZY\r\nContent-Disposition: form-data; name=\"headers\"\r\n\r\nIn-Reply-To: <a@b>\r\nX: 1\r\n\r\n\
        --xYzZY\r\nContent-Disposition: form-data; name=\"attachment1\"; filename=\"name=headers\"\r\n\r\nno\r\n\
        --xYzZY\r\ncontent-disposition: form-data; name=to\r\nContent-Type: text/plain\r\n\r\nx@y\r\n--xYzZY--\r\n";

    #[test]
    fn fields_are_read_and_files_are_not() {
        let found = fields(PARTS.as_bytes(), &["headers", "to", "attachment1"]);
        assert_eq!(found["headers"], "In-Reply-To: <a@b>\r\nX: 1\r\n");
        assert_eq!((found["to"].as_str(), found.len()), ("x@y", 2));
        let found = fields(b"to=x%40y&subject=a+b%zz&to=again&%74oken=1", &["to", "subject", "token", "none"]);
        assert_eq!((found["to"].as_str(), found["subject"].as_str(), found["token"].as_str()), ("x@y", "a b%zz", "1"));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn what_broke_off_keeps_what_was_whole() {
        let cut = &PARTS.as_bytes()[..PARTS.len() - 20];
        assert_eq!(fields(cut, &["headers", "to"]).into_keys().collect::<Vec<_>>(), ["headers"]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), at in 0..=PARTS.len()) {
            let mut broken = PARTS.as_bytes().to_vec();
            broken.splice(at..at, bytes.iter().copied());
            for raw in [bytes.as_slice(), &broken] {
                let _ = fields(raw, &["headers", "to"]);
            }
        }
    }
}
