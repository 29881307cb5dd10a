//! PDF: from `%PDF-` to `%%EOF`, not encrypted, without scripts, launches or files inside.
//!
//! Names are looked for in the whole file, wherever they stand: a reader follows offsets and can be led to any place. Names may be
//! spelt with `#xx`; objects may stand in compressed object streams, which are unpacked here. Everything else compressed is page
//! content, which cannot act.

use std::{collections::HashSet, io::Read};

use flate2::read::ZlibDecoder;

use super::Refusal;

/// Where `%%EOF` must stand, from the end.
const END_WITHIN: usize = 2_048;
/// Most bytes all object streams unpack to.
const UNPACKED_MAX: usize = 64 * 1024 * 1024;
/// Longest dictionary of an object stream.
const DICTIONARY_MAX: usize = 4_096;

/// Names that no ordinary document carries, and what each is refused as.
const REFUSED: [(&[u8], Refusal); 9] = [
    (b"Encrypt", Refusal::Encrypted),
    (b"JavaScript", Refusal::Active),
    (b"JS", Refusal::Active),
    (b"Launch", Refusal::Active),
    (b"RichMedia", Refusal::Active),
    (b"EmbeddedFile", Refusal::Embedded),
    (b"EmbeddedFiles", Refusal::Embedded),
    (b"ImportData", Refusal::Active),
    (b"GoToE", Refusal::Embedded),
];

/// Checks a document.
pub(super) fn inspect(content: &[u8]) -> Result<(), Refusal> {
    let version = content.strip_prefix(b"%PDF-").ok_or(Refusal::Mismatch)?;
    if !matches!(version.first(), Some(b'1' | b'2')) {
        return Err(Refusal::Mismatch);
    }
    check_end(content)?;
    let mut streams = Vec::new();
    for (at, name) in names(content) {
        // Two letters occur by chance in compressed data; a script also needs /JavaScript, which does not.
        if name != b"JS" {
            refuse(&name)?;
        }
        // /First marks an object stream that does not say its type, and outlines, which are no streams.
        match name.as_slice() {
            b"ObjStm" => streams.push((at, true)),
            b"First" => streams.push((at, false)),
            _ => {}
        }
    }
    let mut left = UNPACKED_MAX;
    let mut seen = HashSet::new();
    for (at, is_stream) in streams {
        let objects = match stream_at(content, at, is_stream)? {
            Some(start) if seen.insert(start) => inflate(content.get(start..).unwrap_or_default(), left)?,
            _ => continue,
        };
        left -= objects.len();
        names(&objects).try_for_each(|(_, name)| refuse(&name))?;
    }
    Ok(())
}

/// The end is where it belongs, and no archive follows it.
fn check_end(content: &[u8]) -> Result<(), Refusal> {
    let tail = content.get(content.len().saturating_sub(END_WITHIN)..).unwrap_or_default();
    let end = tail.windows(5).rposition(|window| window == b"%%EOF").ok_or(Refusal::Damaged)?;
    let trailer = tail.get(end + 5..).unwrap_or_default();
    let hides = |signature: &[u8]| trailer.windows(signature.len()).any(|window| window == signature);
    if hides(b"PK\x05\x06") || hides(b"PK\x03\x04") { Err(Refusal::Mismatch) } else { Ok(()) }
}

fn refuse(name: &[u8]) -> Result<(), Refusal> {
    REFUSED.iter().find(|(refused, _)| *refused == name).map_or(Ok(()), |(_, refusal)| Err(*refusal))
}

/// Every name in these bytes, with `#xx` resolved, and where it ends.
fn names(bytes: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> {
    const NAME_MAX: usize = 64;
    bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(move |(slash, _)| {
        let mut name = Vec::new();
        let mut at = slash + 1;
        while let Some(&byte) = bytes.get(at).filter(|byte| is_regular(**byte) && name.len() < NAME_MAX) {
            let spelt = (byte == b'#').then(|| bytes.get(at + 1..at + 3).and_then(hex)).flatten();
            name.push(spelt.unwrap_or(byte));
            at += if spelt.is_some() { 3 } else { 1 };
        }
        (at, name)
    })
}

/// Neither white space nor a delimiter (ISO 32000-1 §7.2.2).
fn is_regular(byte: u8) -> bool {
    !matches!(byte, 0 | 9 | 10 | 12 | 13 | 32) && !b"()<>[]{}/%".contains(&byte)
}

fn hex(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Where the compressed data begins of the object stream in whose dictionary `at` is. `None`: it is not compressed, so its
/// objects were seen with the rest of the file, or it is no stream at all.
fn stream_at(content: &[u8], at: usize, is_stream: bool) -> Result<Option<usize>, Refusal> {
    let find = |bytes: &[u8], wanted: &[u8]| bytes.windows(wanted.len()).position(|window| window == wanted);
    let window = content.get(at..content.len().min(at + DICTIONARY_MAX)).unwrap_or_default();
    let keyword = find(window, b"stream").filter(|keyword| find(&window[..*keyword], b"endobj").is_none());
    let Some(keyword) = keyword else {
        return if is_stream { Err(Refusal::NotInspectable) } else { Ok(None) };
    };
    let before = content.get(at.saturating_sub(DICTIONARY_MAX)..at).unwrap_or_default();
    let opens = |window: &[u8]| window.ends_with(b"obj") && window[0] != b'd';
    let opened = before.windows(4).rposition(opens).unwrap_or(0);
    let dictionary = [before.get(opened..).unwrap_or_default(), window.get(..keyword).unwrap_or_default()].concat();
    // Such a dictionary holds numbers and names. In a text or comment the word we looked for could be a decoy.
    if dictionary.iter().any(|byte| b"(%".contains(byte)) {
        return Err(Refusal::NotInspectable);
    }
    let found: Vec<Vec<u8>> = names(&dictionary).map(|(_, name)| name).collect();
    let filters: Vec<&[u8]> = found
        .iter()
        .map(Vec::as_slice)
        .filter(|name| name.ends_with(b"Decode") || matches!(*name, b"Fl" | b"Crypt" | b"Predictor"))
        .collect();
    let is_filtered = found.iter().any(|name| name == b"Filter" || name == b"F");
    let data = window.get(keyword + 6..).unwrap_or_default();
    let line_end =
        if data.starts_with(b"\r\n") { 2 } else { usize::from(data.starts_with(b"\n") || data.starts_with(b"\r")) };
    match filters.as_slice() {
        [] if !is_filtered => Ok(None),
        [b"FlateDecode" | b"Fl"] => Ok(Some(at + keyword + 6 + line_end)),
        _ => Err(Refusal::NotInspectable),
    }
}

fn inflate(data: &[u8], left: usize) -> Result<Vec<u8>, Refusal> {
    let mut objects = Vec::new();
    // What follows a damaged place is not seen by readers either; what came before is.
    let _ = ZlibDecoder::new(data).take(left as u64 + 1).read_to_end(&mut objects);
    if objects.len() > left { Err(Refusal::Bomb) } else { Ok(objects) }
}
