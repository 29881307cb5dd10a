//! Excel 97–2003 (`.xls`): a compound file with a workbook stream (MS-XLS), without macros, encryption or packaged files.

use std::io::{self, Cursor, Read};

use cfb::CompoundFile;
use runtime::Budget;

use super::{
    archive::long,
    refusal::{AttachmentRefusal, InspectionFault},
};

/// The first bytes of every compound file.
pub(super) const MAGIC: &[u8] = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1";
/// Most storages and streams looked at.
const ENTRIES_MAX: usize = 5_000;
/// Deepest storage. A workbook has three.
const DEPTH_MAX: usize = 16;

/// MS-CFB §2.2: the header, where it says how long a sector is, and the list of sectors that hold the allocation table.
const HEADER_BYTES: usize = 512;
const SECTOR_SHIFT_AT: usize = 30;
const FIRST_LIST_SECTOR_AT: usize = 68;
const LIST_AT: usize = 76;
const SECTORS_MAX: u32 = 0xffff_fffa;
const FREE: u32 = u32::MAX;

/// BIFF records (MS-XLS §2.3).
const BOF: u16 = 0x0809;
const EOF: u16 = 0x000a;
const FILE_PASS: u16 = 0x002f;
const BOUND_SHEET: u16 = 0x0085;
const OB_PROJ: u16 = 0x00d3;
/// Sheet types of a BoundSheet8 record: an Excel 4 macro sheet, a VBA module.
const MACRO_SHEETS: [u8; 2] = [1, 6];
/// The offset of the type in an entry.
const SHEET_TYPE_AT: usize = 5;

pub(super) fn inspect(content: &[u8], budget: &Budget) -> Result<(), InspectionFault> {
    if !content.starts_with(MAGIC) {
        return Err(AttachmentRefusal::Mismatch.into());
    }
    let mut file = open(content, budget)?;
    let workbook = directory(&file, budget)?.ok_or(AttachmentRefusal::Mismatch)?;
    let stream = file.open_stream(workbook).map_err(|_| AttachmentRefusal::Damaged)?;
    // No stream is longer than its file, whatever the directory says.
    globals(&mut stream.take(content.len() as u64), budget)
}

/// Refuses an encrypted office document that hides in a compound file, whatever its extension says.
pub(super) fn refuse_encrypted(content: &[u8], budget: &Budget) -> Result<(), InspectionFault> {
    if content.starts_with(MAGIC) {
        match open(content, budget) {
            Ok(file) => drop(directory(&file, budget)?),
            Err(InspectionFault::Refused(_)) => {}
            Err(spent) => return Err(spent),
        }
    }
    Ok(())
}

fn open<'a>(content: &'a [u8], budget: &Budget) -> Result<CompoundFile<Cursor<&'a [u8]>>, InspectionFault> {
    check_list(content, budget)?;
    // The tables, and the directory: 128 bytes of the file become about 200.
    budget.hold(2 * content.len())?;
    budget.take_steps(content.len() as u64)?;
    Ok(CompoundFile::open(Cursor::new(content)).map_err(|_| AttachmentRefusal::Damaged)?)
}

/// The list of sectors that hold the allocation table names no more of them than the file has: a file of a megabyte could name one of
/// them a hundred thousand times, and each would be read into memory.
fn check_list(content: &[u8], budget: &Budget) -> Result<(), InspectionFault> {
    let header = content.get(..HEADER_BYTES).ok_or(AttachmentRefusal::Damaged)?;
    let sector_bytes = match header.get(SECTOR_SHIFT_AT..SECTOR_SHIFT_AT + 2) {
        Some([9, 0]) => 512,
        Some([12, 0]) => 4_096,
        _ => return Err(AttachmentRefusal::Damaged.into()),
    };
    let sectors = content.len().div_ceil(sector_bytes);
    let entries = sector_bytes / 4;
    let listed =
        |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().filter(|entry| u32::from_le_bytes(**entry) != FREE).count();
    let mut named = listed(header.get(LIST_AT..).unwrap_or_default());
    let mut next = long(header, FIRST_LIST_SECTOR_AT)?;
    while next < SECTORS_MAX && named <= sectors {
        budget.take_steps(sector_bytes as u64)?;
        let at = (usize::try_from(next).map_err(|_| AttachmentRefusal::Damaged)? + 1) * sector_bytes;
        let sector = content.get(at..at + sector_bytes).ok_or(AttachmentRefusal::Damaged)?;
        // The last entry names the next sector of the list. One that lists nothing counts, too, so that a circle has an end.
        let (list, last) = sector.split_at(4 * (entries - 1));
        named += listed(list).max(1);
        next = long(last, 0)?;
    }
    // Each sector of the table speaks of as many sectors as it has entries; an unused one at the end does no harm.
    if named > sectors.div_ceil(entries) + LIST_FREE { Err(AttachmentRefusal::Damaged.into()) } else { Ok(()) }
}

/// How many sectors of the allocation table may be named beyond those the file needs.
const LIST_FREE: usize = 128;

/// Looks at the names in a compound file; answers the workbook's.
fn directory(file: &CompoundFile<Cursor<&[u8]>>, budget: &Budget) -> Result<Option<&'static str>, InspectionFault> {
    let mut workbook = None;
    for (number, entry) in file.walk().enumerate() {
        budget.take_steps(1)?;
        if number >= ENTRIES_MAX || entry.path().components().count() > DEPTH_MAX {
            return Err(AttachmentRefusal::NotInspectable.into());
        }
        match entry.name().to_ascii_lowercase().as_str() {
            "encryptedpackage" | "encryptioninfo" => return Err(AttachmentRefusal::Encrypted.into()),
            "_vba_project_cur" | "_vba_project" | "vba" | "macros" | "vbaproject" => {
                return Err(AttachmentRefusal::Macros.into());
            }
            "\u{1}ole10native" | "package" => return Err(AttachmentRefusal::Embedded.into()),
            _ => {}
        }
        workbook = workbook.or(match entry.path().to_str() {
            Some("/Workbook") => Some("/Workbook"),
            Some("/Book") => Some("/Book"),
            _ => None,
        });
    }
    Ok(workbook)
}

/// Walks the records of the workbook's globals, as they are read.
fn globals(records: &mut impl Read, budget: &Budget) -> Result<(), InspectionFault> {
    let mut is_first = true;
    loop {
        let mut head = [0; 4];
        records.read_exact(&mut head).map_err(|_| AttachmentRefusal::Damaged)?;
        let [kind_low, kind_high, length_low, length_high] = head;
        let kind = u16::from_le_bytes([kind_low, kind_high]);
        let length = u16::from_le_bytes([length_low, length_high]);
        budget.take_steps(u64::from(length) + 4)?;
        let mut data = Vec::new();
        let wanted = if kind == BOUND_SHEET { length.min(8) } else { 0 };
        records.by_ref().take(u64::from(wanted)).read_to_end(&mut data).map_err(|_| AttachmentRefusal::Damaged)?;
        let rest = u64::from(length - wanted);
        let skipped =
            io::copy(&mut records.by_ref().take(rest), &mut io::sink()).map_err(|_| AttachmentRefusal::Damaged)?;
        if data.len() != usize::from(wanted) || skipped != rest {
            return Err(AttachmentRefusal::Damaged.into());
        }
        let refusal = match (is_first, kind) {
            (true, BOF) => None,
            (true, _) => Some(AttachmentRefusal::Mismatch),
            (false, EOF) => return Ok(()),
            (false, FILE_PASS) => Some(AttachmentRefusal::Encrypted),
            (false, OB_PROJ) => Some(AttachmentRefusal::Macros),
            (false, BOUND_SHEET) if data.get(SHEET_TYPE_AT).is_some_and(|sheet| MACRO_SHEETS.contains(sheet)) => {
                Some(AttachmentRefusal::Macros)
            }
            (false, _) => None,
        };
        if let Some(refusal) = refusal {
            return Err(refusal.into());
        }
        is_first = false;
    }
}
