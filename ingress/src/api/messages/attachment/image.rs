//! PNG, JPEG, GIF and WebP: their structure from first to last byte, and sane dimensions. Pixels are not decoded.

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

/// Blocks from the header to the trailer, with a picture among them, and nothing after.
pub(super) fn gif(content: &[u8]) -> Result<(), AttachmentRefusal> {
    let known = content.strip_prefix(b"GIF89a").or_else(|| content.strip_prefix(b"GIF87a"));
    let screen = known.ok_or(AttachmentRefusal::Mismatch)?;
    dimensions(little(screen, 0, 2)?, little(screen, 2, 2)?)?;
    let mut rest = after_colours(screen, 4, 7)?;
    let mut pixels = 0;
    loop {
        let (&kind, block) = rest.split_first().ok_or(AttachmentRefusal::Damaged)?;
        rest = match kind {
            // An extension: its label, and data.
            0x21 => after_data(block.get(1..))?,
            0x2c => {
                let (width, height) = (little(block, 4, 2)?, little(block, 6, 2)?);
                pixels += u64::from(width) * u64::from(height);
                if pixels > PIXELS_MAX {
                    return Err(AttachmentRefusal::TooManyPixels);
                }
                // The size of its codes, and data.
                after_data(after_colours(block, 8, 9)?.get(1..))?
            }
            0x3b if block.is_empty() && pixels > 0 => return Ok(()),
            _ => return Err(AttachmentRefusal::Damaged),
        };
    }
}

/// What stands behind a header of this length and its table of colours, whose size a byte of the header says.
fn after_colours(block: &[u8], flags_at: usize, header: usize) -> Result<&[u8], AttachmentRefusal> {
    let flags = block.get(flags_at).ok_or(AttachmentRefusal::Damaged)?;
    let colours = if flags & 0x80 == 0 { 0 } else { 3 << ((flags & 7) + 1) };
    block.get(header + colours..).ok_or(AttachmentRefusal::Damaged)
}

/// What stands behind data in pieces of at most 255 bytes, of which the last is empty.
fn after_data(data: Option<&[u8]>) -> Result<&[u8], AttachmentRefusal> {
    let mut rest = data.ok_or(AttachmentRefusal::Damaged)?;
    loop {
        let (&length, after) = rest.split_first().ok_or(AttachmentRefusal::Damaged)?;
        rest = after.get(usize::from(length)..).ok_or(AttachmentRefusal::Damaged)?;
        if length == 0 {
            return Ok(rest);
        }
    }
}

/// One RIFF of the length of the file, whose chunks hold a picture. Its first chunk says how large that is.
pub(super) fn webp(content: &[u8]) -> Result<(), AttachmentRefusal> {
    if !content.starts_with(b"RIFF") || content.get(8..12) != Some(b"WEBP") {
        return Err(AttachmentRefusal::Mismatch);
    }
    if usize::try_from(little(content, 4, 4)?).ok() != content.len().checked_sub(8) {
        return Err(AttachmentRefusal::Damaged);
    }
    let mut rest = content.get(12..).unwrap_or_default();
    let mut is_first = true;
    let mut has_picture = false;
    while !rest.is_empty() {
        let kind = rest.get(..4).ok_or(AttachmentRefusal::Damaged)?;
        let length = usize::try_from(little(rest, 4, 4)?).map_err(|_| AttachmentRefusal::Damaged)?;
        let end = length.checked_add(8).ok_or(AttachmentRefusal::Damaged)?;
        let data = rest.get(8..end).ok_or(AttachmentRefusal::Damaged)?;
        if is_first {
            let (width, height) = match kind {
                b"VP8X" => (little(data, 4, 3)? + 1, little(data, 7, 3)? + 1),
                b"VP8L" => {
                    let sizes = little(data, 1, 4)?;
                    ((sizes & 0x3fff) + 1, (sizes >> 14 & 0x3fff) + 1)
                }
                b"VP8 " => (little(data, 6, 2)? & 0x3fff, little(data, 8, 2)? & 0x3fff),
                _ => return Err(AttachmentRefusal::Damaged),
            };
            dimensions(width, height)?;
        }
        has_picture |= matches!(kind, b"VP8 " | b"VP8L" | b"ANMF");
        is_first = false;
        // A chunk begins at an even place.
        rest = rest.get(end + length % 2..).ok_or(AttachmentRefusal::Damaged)?;
    }
    if has_picture { Ok(()) } else { Err(AttachmentRefusal::Damaged) }
}

/// A number of this many bytes, at most four, the lowest first.
fn little(bytes: &[u8], at: usize, length: usize) -> Result<u32, AttachmentRefusal> {
    let number = bytes.get(at..at + length).ok_or(AttachmentRefusal::Damaged)?;
    Ok(number.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte)))
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
