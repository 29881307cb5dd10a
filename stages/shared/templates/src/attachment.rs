//! The MIME headers of an attachment (RFC 2183), with file names in any script (RFC 2231).

use std::fmt::Write as _;

use super::escape;

/// Longest piece of an encoded file name on one line.
const PIECE: usize = 60;

/// What is known of an attachment when its message is compiled.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct Attached {
    /// The file name, checked when the message was accepted.
    pub filename: String,
    /// The media type with its parameters, such as `text/csv; charset=utf-8`.
    pub media_type: String,
    /// How many bytes its base64 lines take.
    pub bytes: u32,
}

/// The part's headers, each with its CRLF.
pub(super) fn part_header(attached: &Attached) -> String {
    let media_type = escape::header(&attached.media_type);
    let name = escape::header(&attached.filename);
    format!(
        "Content-Type: {media_type}\r\nContent-Disposition: attachment;\r\n {}\r\nContent-Transfer-Encoding: base64\r\n",
        filename(&name)
    )
}

/// The `filename` parameter: quoted when it is plain ASCII, else percent-encoded, in numbered pieces when it is long.
fn filename(name: &str) -> String {
    let is_plain = |letter: char| letter == ' ' || (letter.is_ascii_graphic() && !"\"\\%".contains(letter));
    if name.chars().all(is_plain) {
        return format!("filename=\"{name}\"");
    }
    let pieces = encoded_pieces(name);
    if let [only] = pieces.as_slice() {
        return format!("filename*=UTF-8''{only}");
    }
    let numbered = pieces.iter().enumerate().map(|(number, piece)| {
        let charset = if number == 0 { "UTF-8''" } else { "" };
        format!("filename*{number}*={charset}{piece}")
    });
    numbered.collect::<Vec<_>>().join(";\r\n ")
}

/// Percent-encoded, cut between characters.
fn encoded_pieces(name: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for letter in name.chars() {
        let mut encoded = String::new();
        let mut bytes = [0; 4];
        for byte in letter.encode_utf8(&mut bytes).bytes() {
            // RFC 5987 attr-char.
            if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
                encoded.push(char::from(byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
        match pieces.last_mut() {
            Some(piece) if piece.len() + encoded.len() <= PIECE => piece.push_str(&encoded),
            _ => pieces.push(encoded),
        }
    }
    pieces
}
