//! Groups of fields, as the machine-readable parts of reports have them (RFC 3464 §2.1, RFC 5965 §3).

use runtime::{Budget, Spent};

/// Groups of a part that are read at most; a report to one return path is about one recipient.
const GROUPS_MAX: usize = 32;
/// Fields of a group that are read at most.
const FIELDS_MAX: usize = 64;
/// Octets of a field that are kept, its continuation lines included.
const VALUE_MAX: usize = 4 * 1024;

/// One group: names in lower case, values unfolded.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct FieldGroup(Vec<(String, String)>);

impl FieldGroup {
    /// The first field of a name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A field's value without the type before its semicolon (`smtp; 550 …`, `rfc822; a@b`).
    pub(super) fn untyped(&self, name: &str) -> Option<&str> {
        let value = self.get(name)?;
        let plain = |kind: &str| {
            !kind.trim().is_empty() && kind.trim().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        Some(match value.split_once(';') {
            Some((kind, rest)) if plain(kind) => rest.trim(),
            _ => value,
        })
    }
}

/// Reads groups of fields, divided by empty lines.
///
/// # Errors
/// When the budget is spent.
pub(super) fn groups(text: &str, budget: &Budget) -> Result<Vec<FieldGroup>, Spent> {
    let mut groups: Vec<FieldGroup> = vec![FieldGroup::default()];
    for line in text.lines() {
        budget.take_steps(line.len() as u64 + 1)?;
        let Some(group) = groups.last_mut() else { break };
        if line.trim().is_empty() {
            if !group.0.is_empty() && groups.len() < GROUPS_MAX {
                groups.push(FieldGroup::default());
            }
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = group.0.last_mut() {
                let more = cut(line.trim(), VALUE_MAX.saturating_sub(value.len() + 1));
                if !more.is_empty() {
                    budget.hold(more.len() + 1)?;
                    value.push(' ');
                    value.push_str(more);
                }
            }
        } else if let Some((name, value)) = line.split_once(':')
            && group.0.len() < FIELDS_MAX
        {
            let (name, value) = (cut(name.trim(), VALUE_MAX), cut(value.trim(), VALUE_MAX));
            budget.hold(name.len() + value.len())?;
            group.0.push((name.to_ascii_lowercase(), value.to_owned()));
        }
    }
    groups.retain(|group| !group.0.is_empty());
    Ok(groups)
}

/// The beginning of a text, of at most so many octets.
pub(super) fn cut(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(text: &str) -> Vec<FieldGroup> {
        super::groups(text, &Budget::new(super::super::LIMITS)).unwrap()
    }

    #[test]
    fn fields_are_unfolded_and_groups_divided_by_empty_lines() {
        let groups = groups(
            "Reporting-MTA: dns; mx.example\r\n\r\nAction: failed\r\nDiagnostic-Code: smtp; 550\r\n 5.1.1 no\r\n\r\n\r\n",
        );
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[1].untyped("diagnostic-code"), Some("550 5.1.1 no"));
        assert_eq!(groups[1].get("action"), Some("failed"));
    }

    #[test]
    fn a_value_without_a_type_keeps_its_semicolons() {
        let groups = groups("Diagnostic-Code: 550 no such user; sorry");
        assert_eq!(groups[0].untyped("diagnostic-code"), Some("550 no such user; sorry"));
    }
}
