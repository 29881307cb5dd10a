//! A zip archive (APPNOTE 6.3), read in place: its directory, and its entries as they are unpacked.
//!
//! Only what has one reading is taken: the archive fills the file, its directory and its entries agree, and no two entries share bytes
//! or a name. Readers that disagree about an archive see different documents.

use std::{collections::HashSet, io::Read};

use flate2::{Crc, bufread::DeflateDecoder};
use runtime::Budget;

use super::refusal::{AttachmentRefusal, DECODER_BYTES, InspectionFault};

/// The first bytes of an archive.
pub(super) const MAGIC: &[u8] = b"PK\x03\x04";
const DIRECTORY_MAGIC: &[u8] = b"PK\x01\x02";
const END_MAGIC: &[u8] = b"PK\x05\x06";
const LOCAL_BYTES: usize = 30;
const DIRECTORY_BYTES: usize = 46;
const END_BYTES: usize = 22;
const COMMENT_MAX: usize = 0xffff;
/// Encrypted, strongly encrypted, with an encrypted directory.
const ENCRYPTED: u16 = 1 | 1 << 6 | 1 << 13;
/// Sizes and checksum follow the data.
const SIZES_FOLLOW: u16 = 1 << 3;
/// Stands for "see the 64-bit extension".
const ELSEWHERE: u32 = u32::MAX;

/// One file in an archive.
#[derive(Debug)]
pub(super) struct ArchiveEntry<'a> {
    /// Its name, in lower case, with `/` between the parts.
    pub(super) name: String,
    is_deflated: bool,
    packed: &'a [u8],
    size: u32,
    checksum: u32,
}

/// Reads the directory, of at most so many entries.
pub(super) fn entries<'a>(
    content: &'a [u8],
    most: usize,
    budget: &Budget,
) -> Result<Vec<ArchiveEntry<'a>>, InspectionFault> {
    let end = end_of_directory(content)?;
    let number = |at: usize| word(content, end + at);
    let (disks, count, on_this_disk) = (long(content, end + 4)?, number(10)?, number(8)?);
    let (size, start) = (position(content, end + 12)?, position(content, end + 16)?);
    if disks != 0 || count != on_this_disk || start.checked_add(size) != Some(end) {
        return Err(AttachmentRefusal::Damaged.into());
    }
    if usize::from(count) > most {
        return Err(AttachmentRefusal::Bomb.into());
    }
    let (mut entries, mut ranges, mut names) = (Vec::new(), Vec::new(), HashSet::new());
    let mut at = start;
    for _ in 0..count {
        budget.take_steps(1)?;
        let (entry, range, next) = entry(content, at, start)?;
        budget.hold(size_of::<ArchiveEntry<'_>>() + 2 * entry.name.len())?;
        if !names.insert(entry.name.clone()) {
            return Err(AttachmentRefusal::Damaged.into());
        }
        entries.push(entry);
        ranges.push(range);
        at = next;
    }
    ranges.sort_unstable();
    let overlap = ranges.windows(2).any(|pair| pair[0].1 > pair[1].0);
    if at != end || overlap { Err(AttachmentRefusal::Damaged.into()) } else { Ok(entries) }
}

/// The position of the end-of-directory record: with its comment it ends the file.
fn end_of_directory(content: &[u8]) -> Result<usize, AttachmentRefusal> {
    let last = content.len().checked_sub(END_BYTES).ok_or(AttachmentRefusal::Damaged)?;
    for comment in 0..=COMMENT_MAX.min(last) {
        let at = last - comment;
        if content.get(at..).is_some_and(|tail| tail.starts_with(END_MAGIC)) {
            // The last one counts; one that does not reach the end is followed by something else.
            let reaches_end = usize::from(word(content, at + 20)?) == comment;
            return reaches_end.then_some(at).ok_or(AttachmentRefusal::Damaged);
        }
    }
    Err(AttachmentRefusal::Damaged)
}

/// An entry, its bytes in the file, and the position of the next one in the directory.
fn entry(
    content: &[u8],
    at: usize,
    directory: usize,
) -> Result<(ArchiveEntry<'_>, (usize, usize), usize), AttachmentRefusal> {
    let header = content.get(at..at + DIRECTORY_BYTES).filter(|header| header.starts_with(DIRECTORY_MAGIC));
    let header = header.ok_or(AttachmentRefusal::Damaged)?;
    let (flags, method) = (word(header, 8)?, word(header, 10)?);
    let (checksum, packed_size, size) = (long(header, 16)?, long(header, 20)?, long(header, 24)?);
    let (name_length, extra, comment) = (word(header, 28)?, word(header, 30)?, word(header, 32)?);
    let offset = position(header, 42)?;
    if flags & ENCRYPTED != 0 {
        return Err(AttachmentRefusal::Encrypted);
    }
    if !matches!(method, 0 | 8) || packed_size == ELSEWHERE || size == ELSEWHERE {
        return Err(AttachmentRefusal::NotInspectable);
    }
    let name_at = at + DIRECTORY_BYTES;
    let name = content.get(name_at..name_at + usize::from(name_length)).ok_or(AttachmentRefusal::Damaged)?;
    let next = name_at + usize::from(name_length) + usize::from(extra) + usize::from(comment);

    let local = offset.checked_add(LOCAL_BYTES).and_then(|end| content.get(offset..end));
    let local = local.filter(|local| local.starts_with(MAGIC)).ok_or(AttachmentRefusal::Damaged)?;
    let local_name_at = offset + LOCAL_BYTES;
    let local_name = content.get(local_name_at..local_name_at + usize::from(word(local, 26)?));
    let data_at = local_name_at + usize::from(word(local, 26)?) + usize::from(word(local, 28)?);
    let sizes = (long(local, 18)?, long(local, 22)?);
    let sizes_agree =
        word(local, 6)? & SIZES_FOLLOW != 0 || sizes == (packed_size, size) || sizes == (ELSEWHERE, ELSEWHERE);
    let agrees =
        local_name == Some(name) && word(local, 8)? == method && sizes_agree && (method == 8 || packed_size == size);
    let end = usize::try_from(packed_size).ok().and_then(|size| data_at.checked_add(size));
    let end = end.filter(|end| agrees && *end <= directory).ok_or(AttachmentRefusal::Damaged)?;
    let packed = content.get(data_at..end).ok_or(AttachmentRefusal::Damaged)?;
    let name = String::from_utf8_lossy(name).replace('\\', "/").to_ascii_lowercase();
    let entry = ArchiveEntry { name, is_deflated: method == 8, packed, size, checksum };
    Ok((entry, (offset, end), next))
}

impl<'a> ArchiveEntry<'a> {
    /// Its content, where it stands in the archive as it is.
    pub(super) fn stored(&self) -> Option<&'a [u8]> {
        (!self.is_deflated).then_some(self.packed)
    }

    /// Unpacks it piece by piece. What it is must be what the directory says.
    pub(super) fn unpack(
        &self,
        budget: &Budget,
        mut take: impl FnMut(&[u8]) -> Result<(), InspectionFault>,
    ) -> Result<(), InspectionFault> {
        let mut checksum = Crc::new();
        let mut size = 0_u64;
        let mut note = |piece: &[u8]| {
            checksum.update(piece);
            size += piece.len() as u64;
            take(piece)
        };
        if self.is_deflated {
            budget.hold(DECODER_BYTES)?;
            let mut decoder = DeflateDecoder::new(self.packed);
            let mut chunk = [0; 16 * 1024];
            loop {
                let count = decoder.read(&mut chunk).map_err(|_| AttachmentRefusal::Damaged)?;
                if count == 0 {
                    break;
                }
                note(chunk.get(..count).unwrap_or_default())?;
            }
            budget.release(DECODER_BYTES);
        } else {
            self.packed.chunks(16 * 1024).try_for_each(&mut note)?;
        }
        let is_whole = size == u64::from(self.size) && checksum.sum() == self.checksum;
        if is_whole { Ok(()) } else { Err(AttachmentRefusal::Damaged.into()) }
    }
}

fn word(bytes: &[u8], at: usize) -> Result<u16, AttachmentRefusal> {
    let two = bytes.get(at..).and_then(|rest| rest.first_chunk::<2>());
    two.map(|two| u16::from_le_bytes(*two)).ok_or(AttachmentRefusal::Damaged)
}

/// Four bytes as a number, the lowest first.
pub(super) fn long(bytes: &[u8], at: usize) -> Result<u32, AttachmentRefusal> {
    let four = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    four.map(|four| u32::from_le_bytes(*four)).ok_or(AttachmentRefusal::Damaged)
}

fn position(bytes: &[u8], at: usize) -> Result<usize, AttachmentRefusal> {
    usize::try_from(long(bytes, at)?).map_err(|_| AttachmentRefusal::Damaged)
}
