//! PNG and JPEG: their structure from first to last byte, and sane dimensions. Pixels are not decoded.

use super::refusal::AttachmentRefusal;

/// Longest side, in pixels.
const SIDE_MAX: u32 = 20_000;
/// Most pixels: what opens on an ordinary machine.
const PIXELS_MAX: u64 = 100_000_000;

const PNG_MAGIC: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Chunks from IHDR to IEND, and nothing after.
pub(super) fn png(content: &[u8]) -> Result<(), AttachmentRefusal> {
    let mut rest = content.strip_prefix(PNG_MAGIC).ok_or(AttachmentRefusal::Mismatch)?;
    let mut is_first = true;
    let mut has_data = false;
    loop {
        let length = usize::try_from(word(rest, 0)?).map_err(|_| AttachmentRefusal::Damaged)?;
        let kind = rest.get(4..8).ok_or(AttachmentRefusal::Damaged)?;
        // Length, kind and checksum around the data.
        let after = length.checked_add(12).and_then(|size| rest.get(size..)).ok_or(AttachmentRefusal::Damaged)?;
        match (is_first, kind) {
            (true, b"IHDR") if length == 13 => dimensions(word(rest, 8)?, word(rest, 12)?)?,
            (true, _) => return Err(AttachmentRefusal::Damaged),
            (false, b"IDAT") => has_data = true,
            (false, b"IEND") => {
                let complete = after.is_empty() && has_data;
                return if complete { Ok(()) } else { Err(AttachmentRefusal::Damaged) };
            }
            (false, _) => {}
        }
        is_first = false;
        rest = after;
    }
}

/// Segments up to the image data, with a frame header among them, and an end that hides no other file.
pub(super) fn jpeg(content: &[u8]) -> Result<(), AttachmentRefusal> {
    let mut rest = content.strip_prefix(b"\xff\xd8").ok_or(AttachmentRefusal::Mismatch)?;
    let mut has_frame = false;
    loop {
        rest = rest.strip_prefix(b"\xff").ok_or(AttachmentRefusal::Damaged)?;
        let (&marker, after) = rest.split_first().ok_or(AttachmentRefusal::Damaged)?;
        if marker == 0xff {
            // Fill bytes before a marker.
            continue;
        }
        let length = after.get(..2).map(|two| usize::from(u16::from_be_bytes([two[0], two[1]])));
        let length = length.filter(|length| *length >= 2).ok_or(AttachmentRefusal::Damaged)?;
        let segment = after.get(2..length).ok_or(AttachmentRefusal::Damaged)?;
        match marker {
            // Start of frame, without DHT (C4), JPG (C8) and DAC (CC), which share the range.
            0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                let [_, height_high, height_low, width_high, width_low, ..] = segment else {
                    return Err(AttachmentRefusal::Damaged);
                };
                let of = |high: &u8, low: &u8| u32::from(u16::from_be_bytes([*high, *low]));
                dimensions(of(width_high, width_low), of(height_high, height_low))?;
                has_frame = true;
            }
            0xda if has_frame => return jpeg_end(after),
            0xd8..=0xda => return Err(AttachmentRefusal::Damaged),
            _ => {}
        }
        rest = after.get(length..).ok_or(AttachmentRefusal::Damaged)?;
    }
}

/// Cameras append previews and their own data after the image; another document is no such thing.
fn jpeg_end(data: &[u8]) -> Result<(), AttachmentRefusal> {
    let end = data.windows(2).position(|two| two == b"\xff\xd9").ok_or(AttachmentRefusal::Damaged)?;
    let trailer = data.get(end + 2..).unwrap_or_default();
    let hides = |signature: &[u8]| trailer.windows(signature.len()).any(|window| window == signature);
    let posing: [&[u8]; 5] = [b"PK\x03\x04", b"PK\x05\x06", b"%PDF-", b"<script", b"<html"];
    if posing.into_iter().any(hides) { Err(AttachmentRefusal::Mismatch) } else { Ok(()) }
}

fn word(bytes: &[u8], at: usize) -> Result<u32, AttachmentRefusal> {
    let four = bytes.get(at..at + 4).and_then(|four| <[u8; 4]>::try_from(four).ok());
    four.map(u32::from_be_bytes).ok_or(AttachmentRefusal::Damaged)
}

fn dimensions(width: u32, height: u32) -> Result<(), AttachmentRefusal> {
    if width == 0 || height == 0 {
        return Err(AttachmentRefusal::Damaged);
    }
    let sane = width <= SIDE_MAX && height <= SIDE_MAX && u64::from(width) * u64::from(height) <= PIXELS_MAX;
    if sane { Ok(()) } else { Err(AttachmentRefusal::TooManyPixels) }
}
