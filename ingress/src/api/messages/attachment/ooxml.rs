//! Word and Excel documents (`.docx`, `.xlsx`): a zip archive with the right parts (ECMA-376), every entry unpacked under a
//! budget to see that it is what it says.

use runtime::Budget;

use super::{
    archive::{self, ArchiveEntry},
    ole,
    refusal::{AttachmentRefusal, InspectionFault, Unpacked},
    xml,
};

/// Most entries of one document, with those of documents embedded in it.
const ENTRIES_MAX: usize = 2_000;
/// Most bytes all entries unpack to.
const UNPACKED_MAX: u64 = 150 * 1024 * 1024;
/// Most times an archive may grow. Sheets of numbers reach 30.
const RATIO_MAX: u64 = 100;
/// Longest part that is read as a whole.
const PART_MAX: usize = 2 * 1024 * 1024;
/// What an archive inside may have beyond the length of the document: it is compressed already, so it hardly shrinks again.
const INNER_FREE: usize = 64 * 1024;

const CONTENT_TYPES: &str = "[content_types].xml";

/// What a document has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OoxmlDocument {
    Word,
    Sheet,
    /// Embedded: any document without macros.
    Any,
}

impl OoxmlDocument {
    fn main_part(self) -> Option<&'static str> {
        match self {
            Self::Word => Some("application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"),
            Self::Sheet => Some("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"),
            Self::Any => None,
        }
    }
}

pub(super) fn inspect(content: &[u8], document: OoxmlDocument, budget: &Budget) -> Result<(), InspectionFault> {
    ole::refuse_encrypted(content, budget)?;
    let mut looking = DocumentLimits {
        budget,
        unpacked: Unpacked::new(content.len(), UNPACKED_MAX, RATIO_MAX),
        entries_left: ENTRIES_MAX,
        inner_max: content.len() + INNER_FREE,
    };
    looking.look(content, document)
}

/// The remaining limits of a document and the documents inside it.
struct DocumentLimits<'a> {
    budget: &'a Budget,
    unpacked: Unpacked,
    entries_left: usize,
    inner_max: usize,
}

/// What an entry turned out to be.
enum OoxmlPart<'a> {
    Text(Vec<u8>),
    Archive(Vec<u8>),
    /// Stands in the archive as it is.
    StoredArchive(&'a [u8]),
    Other,
}

impl DocumentLimits<'_> {
    fn look(&mut self, content: &[u8], document: OoxmlDocument) -> Result<(), InspectionFault> {
        // A chart holds its workbook; nothing holds more than that.
        let _level = self.budget.enter()?;
        if !content.starts_with(archive::MAGIC) {
            return Err(AttachmentRefusal::Mismatch.into());
        }
        let entries = archive::entries(content, self.entries_left, self.budget)?;
        self.entries_left -= entries.len();
        let mut has_types = false;
        for entry in &entries {
            check_name(&entry.name)?;
            match self.read(entry)? {
                OoxmlPart::Text(text) => {
                    self.budget.take_steps(text.len() as u64)?;
                    if entry.name == CONTENT_TYPES {
                        check_types(&text, document)?;
                        has_types = true;
                    } else {
                        check_relationships(&text)?;
                    }
                    self.budget.release(text.len());
                }
                OoxmlPart::Archive(inner) => {
                    self.look(&inner, OoxmlDocument::Any)?;
                    self.budget.release(inner.len());
                }
                OoxmlPart::StoredArchive(inner) => self.look(inner, OoxmlDocument::Any)?,
                OoxmlPart::Other => {}
            }
        }
        if has_types { Ok(()) } else { Err(AttachmentRefusal::Mismatch.into()) }
    }

    /// Unpacks one entry. Kept is what is looked into: the parts that are read, and an archive.
    fn read<'a>(&mut self, entry: &ArchiveEntry<'a>) -> Result<OoxmlPart<'a>, InspectionFault> {
        let is_read = entry.name == CONTENT_TYPES || entry.name.ends_with(".rels");
        let start = archive::MAGIC.len().max(ole::MAGIC.len());
        let stored = entry.stored();
        let (budget, inner_max) = (self.budget, self.inner_max);
        let unpacked = &mut self.unpacked;
        let mut kept = Vec::new();
        entry.unpack(budget, |piece| {
            unpacked.add(piece.len(), budget)?;
            let is_kept = is_read || (kept.starts_with(archive::MAGIC) && stored.is_none());
            let most = if is_read { PART_MAX } else { inner_max };
            if is_kept && kept.len() + piece.len() > most {
                return Err(AttachmentRefusal::NotInspectable.into());
            }
            // Of what is not kept, the whole first piece: should it begin an archive, the rest is needed, too.
            if is_kept || kept.len() < start {
                budget.hold(piece.len())?;
                kept.extend_from_slice(piece);
            }
            Ok(())
        })?;
        if kept.starts_with(ole::MAGIC) {
            // An OLE object or an old document with whatever is in it.
            return Err(AttachmentRefusal::Embedded.into());
        }
        if is_read {
            return Ok(OoxmlPart::Text(kept));
        }
        let is_archive = kept.starts_with(archive::MAGIC);
        if is_archive && stored.is_none() {
            return Ok(OoxmlPart::Archive(kept));
        }
        budget.release(kept.len());
        Ok(stored.filter(|_| is_archive).map_or(OoxmlPart::Other, OoxmlPart::StoredArchive))
    }
}

fn check_name(name: &str) -> Result<(), AttachmentRefusal> {
    if name.split('/').any(|part| part == "..") || name.starts_with('/') {
        return Err(AttachmentRefusal::Damaged);
    }
    let has = |part: &str| name.contains(part);
    if has("vbaproject") || has("vbadata") || has("macrosheets/") {
        return Err(AttachmentRefusal::Macros);
    }
    if has("activex/") || has("customui/") {
        return Err(AttachmentRefusal::Active);
    }
    Ok(())
}

/// The declared parts: the right main part, none with macros.
fn check_types(document: &[u8], wanted: OoxmlDocument) -> Result<(), AttachmentRefusal> {
    let mut has_main = wanted.main_part().is_none();
    xml::elements(document, |element| {
        for value in element.values("ContentType") {
            let value = value.trim().to_ascii_lowercase();
            if value.contains("macroenabled") || value.contains("vbaproject") {
                return Err(AttachmentRefusal::Macros);
            }
            has_main |= wanted.main_part() == Some(value.as_str());
        }
        Ok(())
    })?;
    if has_main { Ok(()) } else { Err(AttachmentRefusal::Mismatch) }
}

/// Relationships to elsewhere that are followed when the document is opened. Links and pictures may lead outside.
fn check_relationships(document: &[u8]) -> Result<(), AttachmentRefusal> {
    let followed = ["attachedtemplate", "oleobject", "frame", "subdocument", "package", "control", "vbaproject"];
    xml::elements(document, |element| {
        if !element.name.eq_ignore_ascii_case("Relationship") {
            return Ok(());
        }
        let outside = element.values("TargetMode").any(|mode| mode.to_ascii_lowercase().contains("external"));
        let is_followed = |kind: &str| {
            let kind = kind.trim().to_ascii_lowercase();
            kind.rsplit('/').next().is_some_and(|last| followed.iter().any(|word| last.contains(word)))
        };
        if outside && element.values("Type").any(is_followed) { Err(AttachmentRefusal::Active) } else { Ok(()) }
    })
}
