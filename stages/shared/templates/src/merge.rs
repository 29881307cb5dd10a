//! The data a message is rendered from, and where its tracked addresses come from.

use serde_json::{Map, Value};

/// The recipient as templates see them. Absent and empty values are the same to a template: they print as nothing,
/// are false in `if`, and `default` replaces them.
#[derive(Debug, Clone, Default)]
pub struct Contact {
    /// The address as the recipient writes it.
    pub email: String,
    /// Given name.
    pub first_name: Option<String>,
    /// Family name.
    pub last_name: Option<String>,
    /// Job title or form of address.
    pub title: Option<String>,
    /// Telephone number.
    pub phone: Option<String>,
    /// Company name.
    pub company: Option<String>,
    /// IANA time zone name.
    pub timezone: Option<String>,
    /// BCP 47 language tag.
    pub locale: Option<String>,
    /// Where the contact stands with the tenant.
    pub lifecycle_stage: Option<String>,
    /// US DOT number.
    pub dot_number: Option<String>,
    /// The tenant's own fields: an object.
    pub fields: Value,
}

/// One recipient's data.
#[derive(Debug, Clone)]
pub struct MergeData {
    /// The recipient.
    pub contact: Contact,
    /// The `data` object of a transactional request; `Null` otherwise.
    pub data: Value,
    /// Of mail of a sequence that an event of the product started: its `name`, `occurred_at` and `properties`; `Null` otherwise.
    pub event: Value,
    /// Header fields of this mail alone. Printed by messages that are compiled with `own_headers`.
    pub headers: OwnHeaders,
}

/// Header fields that differ from mail to mail of one message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnHeaders {
    /// The display name in From, instead of the sender's.
    pub from_name: Option<String>,
    /// The display name in To, instead of the contact's.
    pub to_name: Option<String>,
    /// The Reply-To, instead of the sender's.
    pub reply_to: Option<String>,
    /// The names and addresses in Cc.
    pub cc: Vec<(String, String)>,
    /// Further fields: name and value.
    pub custom: Vec<(String, String)>,
}

/// How much merge data one message may come with. Checked before it is accepted; rendering counts what it touches of it.
#[derive(Debug, Clone, Copy)]
pub struct DataLimits {
    /// Most bytes of keys and texts; a number or a flag counts for eight.
    pub bytes: usize,
    /// Most values, at all depths.
    pub values: usize,
    /// Deepest nesting of objects and lists in `data`.
    pub depth: usize,
}

impl Default for DataLimits {
    fn default() -> Self {
        Self { bytes: 256 * 1024, values: 10_000, depth: 16 }
    }
}

/// Why merge data is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFault {
    /// Where in the data a limit was passed, such as `.order.items[3]`; empty for the data as a whole.
    pub path: String,
    /// The code as callers see it.
    pub code: &'static str,
    /// In words.
    pub detail: String,
}

impl DataLimits {
    /// Checks merge data against the limits. Goes no deeper than they allow.
    ///
    /// # Errors
    /// The first limit that is passed.
    pub fn check(&self, data: &Map<String, Value>) -> Result<(), DataFault> {
        let mut counted = Counted { limits: *self, bytes: 0, values: 0, path: String::new() };
        data.iter().try_for_each(|(key, value)| counted.member(key, value, 1))
    }
}

struct Counted {
    limits: DataLimits,
    bytes: usize,
    values: usize,
    path: String,
}

impl Counted {
    fn member(&mut self, key: &str, value: &Value, depth: usize) -> Result<(), DataFault> {
        self.take(key.len())?;
        let length = self.path.len();
        // A key is quoted no longer than names are.
        self.path.push('.');
        self.path.extend(key.chars().take(64));
        self.value(value, depth)?;
        self.path.truncate(length);
        Ok(())
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), DataFault> {
        self.values += 1;
        if self.values > self.limits.values {
            let detail = format!("may have at most {} values in all", self.limits.values);
            return Err(DataFault { path: String::new(), code: "too_many", detail });
        }
        match value {
            Value::String(text) => self.take(text.len()),
            Value::Null | Value::Bool(_) | Value::Number(_) => self.take(8),
            Value::Array(_) | Value::Object(_) if depth >= self.limits.depth => {
                let detail = format!("objects and lists may nest at most {} deep", self.limits.depth);
                Err(DataFault { path: self.path.clone(), code: "nested_too_deep", detail })
            }
            Value::Array(items) => items.iter().enumerate().try_for_each(|(index, item)| {
                let length = self.path.len();
                self.path.push_str(&format!("[{index}]"));
                self.value(item, depth + 1)?;
                self.path.truncate(length);
                Ok(())
            }),
            Value::Object(object) => object.iter().try_for_each(|(key, value)| self.member(key, value, depth + 1)),
        }
    }

    fn take(&mut self, bytes: usize) -> Result<(), DataFault> {
        self.bytes += bytes;
        if self.bytes > self.limits.bytes {
            let detail = format!("may have at most {} bytes in all", self.limits.bytes);
            return Err(DataFault { path: String::new(), code: "too_long", detail });
        }
        Ok(())
    }
}

/// Makes a recipient's own addresses. Each is called at most a few times a message and must be pure: the same answer
/// for the same question. Answers are absolute URLs without spaces; they are escaped for where they are put.
pub trait Links {
    /// The tracked form of a link. `link_no` counts the links of the template from 0; `url` is where it leads.
    fn click(&self, link_no: u16, url: &str) -> String;
    /// The address of the open pixel.
    fn open_pixel(&self) -> String;
    /// The one-click unsubscribe address (RFC 8058: the same for the page and for the POST).
    fn unsubscribe(&self) -> String;
    /// The recipient's preferences page.
    fn preferences(&self) -> String;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fault(data: Value) -> Option<(&'static str, String)> {
        let Value::Object(data) = data else { unreachable!() };
        DataLimits { bytes: 100, values: 10, depth: 3 }.check(&data).err().map(|fault| (fault.code, fault.path))
    }

    #[test]
    fn merge_data_has_limits_of_bytes_values_and_depth() {
        assert_eq!(fault(json!({"order": {"items": [1, 2, 3]}, "name": "Ada"})), None);
        assert_eq!(fault(json!({"a": "x".repeat(100)})), Some(("too_long", String::new())));
        assert_eq!(fault(json!({"a": vec![0; 10]})), Some(("too_many", String::new())));
        assert_eq!(fault(json!({"a": [{"b": [1]}]})), Some(("nested_too_deep", ".a[0].b".to_owned())));
    }
}
