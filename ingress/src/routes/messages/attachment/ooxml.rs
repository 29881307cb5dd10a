//! Word and Excel documents (`.docx`, `.xlsx`): a zip archive with the right parts (ECMA-376), every entry unpacked under a
//! budget to see that it is what it says.

use std::io::{Cursor, Read};

use zip::{CompressionMethod, ZipArchive};

use super::{Refusal, ole};

/// Most entries of one document, with those of documents embedded in it.
const ENTRIES_MAX: usize = 2_000;
/// Most bytes all entries unpack to.
const UNPACKED_MAX: u64 = 150 * 1024 * 1024;
/// So much may unpack from whatever little; beyond it the ratio counts.
const UNPACKED_FREE: u64 = 10 * 1024 * 1024;
/// Most times an archive may grow. Sheets of numbers reach 30.
const RATIO_MAX: u64 = 100;
/// Longest part that is read as a whole.
const PART_MAX: u64 = 2 * 1024 * 1024;
/// A chart holds its workbook; nothing holds more than that.
const DEPTH_MAX: usize = 2;

const ZIP_MAGIC: &[u8] = b"PK\x03\x04";
const CONTENT_TYPES: &str = "[content_types].xml";

/// What a document has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Document {
    Word,
    Sheet,
    /// Embedded: any document without macros.
    Any,
}

impl Document {
    fn main_part(self) -> Option<&'static str> {
        match self {
            Self::Word => Some("application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"),
            Self::Sheet => Some("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"),
            Self::Any => None,
        }
    }
}

/// Checks a document.
pub(super) fn inspect(content: &[u8], document: Document) -> Result<(), Refusal> {
    ole::refuse_encrypted(content)?;
    let mut budget = Budget { packed: content.len() as u64, unpacked: 0, entries: 0 };
    look(content, document, 0, &mut budget)
}

/// What was unpacked so far.
struct Budget {
    packed: u64,
    unpacked: u64,
    entries: usize,
}

impl Budget {
    fn spend(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.unpacked += bytes as u64;
        let ratio_free = self.unpacked <= UNPACKED_FREE;
        let sane = self.unpacked <= UNPACKED_MAX && (ratio_free || self.unpacked / RATIO_MAX <= self.packed);
        if sane { Ok(()) } else { Err(Refusal::Bomb) }
    }

    fn count(&mut self, entries: usize) -> Result<(), Refusal> {
        self.entries += entries;
        if self.entries <= ENTRIES_MAX { Ok(()) } else { Err(Refusal::Bomb) }
    }
}

fn look(content: &[u8], document: Document, depth: usize, budget: &mut Budget) -> Result<(), Refusal> {
    if !content.starts_with(ZIP_MAGIC) {
        return Err(Refusal::Mismatch);
    }
    let mut archive = ZipArchive::new(Cursor::new(content)).map_err(|_| Refusal::Damaged)?;
    budget.count(archive.len())?;
    check_frame(&mut archive, content)?;
    let mut types = None;
    for number in 0..archive.len() {
        let (name, part) = read_entry(&mut archive, number, budget)?;
        match part {
            Part::Text(text) if name == CONTENT_TYPES => types = Some(text),
            Part::Text(text) if name.ends_with(".rels") => check_relationships(&text)?,
            Part::Archive(inner) if depth + 1 < DEPTH_MAX => look(&inner, Document::Any, depth + 1, budget)?,
            Part::Archive(_) => return Err(Refusal::Bomb),
            Part::Text(_) | Part::Other => {}
        }
    }
    check_types(&types.ok_or(Refusal::Mismatch)?, document)
}

/// The archive fills the file, and its entries do not share bytes or names: readers that disagree about such an archive see
/// different documents.
fn check_frame(archive: &mut ZipArchive<Cursor<&[u8]>>, content: &[u8]) -> Result<(), Refusal> {
    const END_BYTES: usize = 22;
    let tail = content.len().checked_sub(END_BYTES + archive.comment().len()).and_then(|at| content.get(at..));
    let ends_there = tail.is_some_and(|tail| tail.starts_with(b"PK\x05\x06"));
    let overlaps = archive.has_overlapping_entries().map_err(|_| Refusal::Damaged)?;
    if archive.offset() != 0 || !ends_there || overlaps || archive.has_duplicate_names() {
        return Err(Refusal::Damaged);
    }
    Ok(())
}

/// What an entry turned out to be.
enum Part {
    Text(String),
    Archive(Vec<u8>),
    Other,
}

/// Unpacks one entry: its name in lower case, and what is in it.
fn read_entry(
    archive: &mut ZipArchive<Cursor<&[u8]>>,
    number: usize,
    budget: &mut Budget,
) -> Result<(String, Part), Refusal> {
    let entry = archive.by_index_data(number).map_err(|_| Refusal::Damaged)?;
    if entry.encrypted() {
        return Err(Refusal::Encrypted);
    }
    if !matches!(entry.compression(), CompressionMethod::Stored | CompressionMethod::Deflated) {
        return Err(Refusal::NotInspectable);
    }
    let name = entry.name().map_err(|_| Refusal::Damaged)?.replace('\\', "/").to_ascii_lowercase();
    check_name(&name)?;
    let mut file = archive.by_index(number).map_err(|_| Refusal::Damaged)?;
    let is_read = name == CONTENT_TYPES || name.ends_with(".rels");
    let mut kept = Vec::new();
    let mut chunk = [0; 16 * 1024];
    loop {
        let count = file.read(&mut chunk).map_err(|_| Refusal::Damaged)?;
        let bytes = chunk.get(..count).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        budget.spend(count)?;
        let is_start = kept.len() < ZIP_MAGIC.len().max(ole::MAGIC.len());
        if is_start || is_read || kept.starts_with(ZIP_MAGIC) {
            kept.extend_from_slice(bytes);
        }
        if is_read && kept.len() as u64 > PART_MAX {
            return Err(Refusal::NotInspectable);
        }
    }
    Ok((name, part_of(kept, is_read)?))
}

fn part_of(kept: Vec<u8>, is_read: bool) -> Result<Part, Refusal> {
    if kept.starts_with(ole::MAGIC) {
        // An OLE object or an old document with whatever is in it.
        return Err(Refusal::Embedded);
    }
    if is_read {
        // UTF-16 would pass by unread.
        return String::from_utf8(kept)
            .map(|text| Part::Text(text.to_ascii_lowercase()))
            .map_err(|_| Refusal::NotInspectable);
    }
    Ok(if kept.starts_with(ZIP_MAGIC) { Part::Archive(kept) } else { Part::Other })
}

fn check_name(name: &str) -> Result<(), Refusal> {
    if name.split('/').any(|part| part == "..") || name.starts_with('/') {
        return Err(Refusal::Damaged);
    }
    let has = |part: &str| name.contains(part);
    if has("vbaproject") || has("vbadata") || has("macrosheets/") {
        return Err(Refusal::Macros);
    }
    if has("activex/") || has("customui/") {
        return Err(Refusal::Active);
    }
    Ok(())
}

/// The declared parts: the right main part, none with macros.
fn check_types(types: &str, document: Document) -> Result<(), Refusal> {
    if types.contains("macroenabled") || types.contains("vbaproject") {
        return Err(Refusal::Macros);
    }
    if document.main_part().is_some_and(|main| !types.contains(main)) {
        return Err(Refusal::Mismatch);
    }
    Ok(())
}

/// Relationships to elsewhere that are followed when the document is opened. Links and pictures may lead outside.
fn check_relationships(text: &str) -> Result<(), Refusal> {
    // Numeric references could spell any of the words below; no program writes them here.
    if text.contains("&#") {
        return Err(Refusal::NotInspectable);
    }
    let followed = ["attachedtemplate", "oleobject", "/frame", "subdocument", "/package", "/control", "vbaproject"];
    let is_active = |relationship: &str| {
        let element = relationship.split('>').next().unwrap_or_default();
        let outside = element.contains("\"external\"") || element.contains("'external'");
        outside && followed.iter().any(|word| element.contains(word))
    };
    if text.split("<relationship ").skip(1).any(is_active) { Err(Refusal::Active) } else { Ok(()) }
}
