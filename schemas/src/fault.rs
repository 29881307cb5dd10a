//! What a caller reads of a value that serde, or a parser of the standard library, refuses: no name of a Rust type.

/// The text for a message of serde or of a parser. Of a value of another type it names the expected one only: what stands before "expected"
/// may quote the value.
#[must_use]
pub fn describe_fault(message: &str) -> String {
    let expected_type = || message.rsplit_once("expected ").map_or("another type", |(_, expected)| expected);
    let expected = is_wrong_type(message).then(expected_type);
    let is_large = message.starts_with("invalid value: integer `") && !message.starts_with("invalid value: integer `-");
    let kind = match expected.unwrap_or(message) {
        "u8" | "u16" | "u32" | "u64" | "i8" | "i16" | "i32" | "i64" if is_large => "a whole number in range",
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "a whole number of 0 or more",
        "i8"
        | "i16"
        | "i32"
        | "i64"
        | "i128"
        | "isize"
        | "invalid digit found in string"
        | "cannot parse integer from empty string" => "a whole number",
        "number too large to fit in target type" | "number too small to fit in target type" => {
            "a whole number in range"
        }
        "f32" | "f64" | "invalid float literal" | "cannot parse float from empty string" => "a number",
        "a boolean" | "provided string was not `true` or `false`" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        "a UUID string" | "a formatted UUID string" => "a UUID",
        text if text.starts_with("UUID parsing failed") => "a UUID",
        text if expected.is_some() => text,
        text => return text.to_owned(),
    };
    format!("must be {kind}")
}

/// True if a message of serde says that a value has another type.
#[must_use]
pub fn is_wrong_type(message: &str) -> bool {
    message.starts_with("invalid type") || message.starts_with("invalid value")
}
