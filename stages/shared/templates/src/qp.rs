//! Quoted-printable (RFC 2045 §6.7), for text that is encoded in pieces.
//!
//! A placeholder's value is encoded independently of the text around it: a placeholder always begins in column 0 and,
//! unless it is empty, ends with a soft line break, so that the text after it begins in column 0 again. No line depends on
//! the length of a value, and none exceeds 76 characters.

/// Longest line before the `=` of a soft line break.
const LINE: usize = 75;

/// Encodes text in the order it appears in a body.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    out: String,
    column: usize,
}

impl Encoder {
    /// Appends text. Line ends must be CRLF already.
    pub(super) fn text(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let rest = bytes.get(at..).unwrap_or_default();
            if rest.starts_with(b"\r\n") {
                self.out.push_str("\r\n");
                self.column = 0;
                at += 2;
                continue;
            }
            let ends_line = rest.len() == 1 || rest.get(1..3) == Some(b"\r\n");
            let is_plain = match byte {
                // Trailing white space is lost in transport; a dot or "From " at the start of a line is changed by it.
                b' ' | b'\t' => !ends_line,
                b'.' => self.column != 0 && self.column != LINE,
                b'F' => !((self.column == 0 || self.column == LINE) && rest.starts_with(b"From ")),
                b'=' => false,
                _ => byte.is_ascii_graphic(),
            };
            if is_plain {
                self.break_line_for(1);
                self.out.push(char::from(byte));
                self.column += 1;
            } else {
                self.break_line_for(3);
                self.out.push('=');
                self.out.push(hex(byte >> 4));
                self.out.push(hex(byte & 15));
                self.column += 3;
            }
            at += 1;
        }
    }

    /// Adds a soft line break, unless in column 0: the decoded text has no line end there.
    pub(super) fn soft_break(&mut self) {
        if self.column != 0 {
            self.out.push_str("=\r\n");
            self.column = 0;
        }
    }

    /// Returns the text that was encoded since the last call, and the column in which a token begins that is put after it. The token ends
    /// in column 0.
    pub(super) fn take_before_token(&mut self) -> (String, u8) {
        // No line is that long.
        let column = u8::try_from(std::mem::take(&mut self.column)).unwrap_or(u8::MAX);
        (self.take(), column)
    }

    /// Returns the text that was encoded since the last call.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.out)
    }

    fn break_line_for(&mut self, wanted: usize) {
        if self.column + wanted > LINE {
            self.soft_break();
        }
    }
}

/// Encodes a placeholder's value: from column 0 to column 0.
pub(super) fn slot(text: &str) -> String {
    let mut encoder = Encoder { out: String::with_capacity(text.len() + text.len() / 24 + 3), column: 0 };
    encoder.text(text);
    encoder.soft_break();
    encoder.out
}

fn hex(nibble: u8) -> char {
    char::from(if nibble < 10 { b'0' + nibble } else { b'A' + nibble - 10 })
}
