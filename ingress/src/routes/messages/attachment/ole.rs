//! Excel 97–2003 (`.xls`): a compound file with a workbook stream (MS-XLS), without macros, encryption or packaged files.

use std::io::{Cursor, Read};

use cfb::CompoundFile;

use super::Refusal;

/// The first bytes of every compound file.
pub(super) const MAGIC: &[u8] = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1";
/// Most storages and streams looked at.
const ENTRIES_MAX: usize = 5_000;

/// BIFF records (MS-XLS §2.3).
const BOF: u16 = 0x0809;
const EOF: u16 = 0x000a;
const FILE_PASS: u16 = 0x002f;
const BOUND_SHEET: u16 = 0x0085;
const OB_PROJ: u16 = 0x00d3;
/// Sheet types of a BoundSheet8 record: an Excel 4 macro sheet, a VBA module.
const MACRO_SHEETS: [u8; 2] = [1, 6];

/// Checks a workbook.
pub(super) fn inspect(content: &[u8]) -> Result<(), Refusal> {
    if !content.starts_with(MAGIC) {
        return Err(Refusal::Mismatch);
    }
    let mut file = CompoundFile::open(Cursor::new(content)).map_err(|_| Refusal::Damaged)?;
    let workbook = directory(&file)?.ok_or(Refusal::Mismatch)?;
    let mut records = Vec::new();
    let mut stream = file.open_stream(workbook).map_err(|_| Refusal::Damaged)?;
    // No stream is longer than its file, whatever the directory says.
    stream.by_ref().take(content.len() as u64).read_to_end(&mut records).map_err(|_| Refusal::Damaged)?;
    globals(&records)
}

/// Refuses an encrypted office document that hides in a compound file, whatever its extension says.
pub(super) fn refuse_encrypted(content: &[u8]) -> Result<(), Refusal> {
    if content.starts_with(MAGIC)
        && let Ok(file) = CompoundFile::open(Cursor::new(content))
    {
        directory(&file)?;
    }
    Ok(())
}

/// Looks at the names in a compound file; answers the workbook's.
fn directory(file: &CompoundFile<Cursor<&[u8]>>) -> Result<Option<&'static str>, Refusal> {
    let mut workbook = None;
    for (number, entry) in file.walk().enumerate() {
        if number >= ENTRIES_MAX {
            return Err(Refusal::NotInspectable);
        }
        match entry.name().to_ascii_lowercase().as_str() {
            "encryptedpackage" | "encryptioninfo" => return Err(Refusal::Encrypted),
            "_vba_project_cur" | "_vba_project" | "vba" | "macros" | "vbaproject" => return Err(Refusal::Macros),
            "\u{1}ole10native" | "package" => return Err(Refusal::Embedded),
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

/// Walks the records of the workbook's globals.
fn globals(mut records: &[u8]) -> Result<(), Refusal> {
    let mut is_first = true;
    while let [kind_low, kind_high, length_low, length_high, rest @ ..] = records {
        let kind = u16::from_le_bytes([*kind_low, *kind_high]);
        let length = usize::from(u16::from_le_bytes([*length_low, *length_high]));
        let (data, after) = rest.split_at_checked(length).ok_or(Refusal::Damaged)?;
        match (is_first, kind) {
            (true, BOF) => {}
            (true, _) => return Err(Refusal::Mismatch),
            (false, EOF) => return Ok(()),
            (false, FILE_PASS) => return Err(Refusal::Encrypted),
            (false, OB_PROJ) => return Err(Refusal::Macros),
            (false, BOUND_SHEET) if data.get(5).is_some_and(|sheet| MACRO_SHEETS.contains(sheet)) => {
                return Err(Refusal::Macros);
            }
            (false, _) => {}
        }
        is_first = false;
        records = after;
    }
    Err(Refusal::Damaged)
}
