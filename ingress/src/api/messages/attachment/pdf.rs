//! PDF: from `%PDF-` to `%%EOF`, not encrypted, without scripts, launches or files inside.
//!
//! Names are looked for in the whole file, wherever they stand: a reader follows offsets and can be led to any place. Names may be
//! spelt with `#xx`; objects may stand in compressed object streams, which are unpacked here and not kept. Everything else compressed
//! is page content, which cannot act.

use std::{collections::HashSet, io::Read};

use flate2::bufread::ZlibDecoder;
use runtime::Budget;

use super::refusal::{AttachmentRefusal, DECODER_BYTES, InspectionFault, Unpacked};

/// How far from the end `%%EOF` may be.
const END_WITHIN: usize = 2_048;
/// Most object streams of one document. A writer puts a hundred objects and more into each.
const STREAMS_MAX: usize = 4_096;
/// Most bytes all object streams unpack to.
const UNPACKED_MAX: u64 = 64 * 1024 * 1024;
/// Most times a document may grow. Objects are text, of which deflate leaves a tenth.
const RATIO_MAX: u64 = 50;
/// Most times a byte of the document is read as part of a dictionary. Dictionaries do not overlap; what only looks like one may.
const READINGS_MAX: u64 = 4;
const READINGS_FREE: u64 = 64 * 1024;

/// Names that no ordinary document carries, and what each is refused as.
const REFUSED: [(&[u8], AttachmentRefusal); 9] = [
    (b"Encrypt", AttachmentRefusal::Encrypted),
    (b"JavaScript", AttachmentRefusal::Active),
    (b"JS", AttachmentRefusal::Active),
    (b"Launch", AttachmentRefusal::Active),
    (b"RichMedia", AttachmentRefusal::Active),
    (b"EmbeddedFile", AttachmentRefusal::Embedded),
    (b"EmbeddedFiles", AttachmentRefusal::Embedded),
    (b"ImportData", AttachmentRefusal::Active),
    (b"GoToE", AttachmentRefusal::Embedded),
];

pub(super) fn inspect(content: &[u8], budget: &Budget) -> Result<(), InspectionFault> {
    let version = content.strip_prefix(b"%PDF-").ok_or(AttachmentRefusal::Mismatch)?;
    if !matches!(version.first(), Some(b'1' | b'2')) {
        return Err(AttachmentRefusal::Mismatch.into());
    }
    check_end(content)?;
    let marked = check_names(content, budget)?;
    let streams = object_streams(content, budget)?;
    if !are_covered(&marked, &streams) {
        return Err(AttachmentRefusal::NotInspectable.into());
    }
    let mut unpacked = Unpacked::new(content.len(), UNPACKED_MAX, RATIO_MAX);
    let mut seen = HashSet::new();
    for stream in &streams {
        if stream.is_packed && seen.insert(stream.data) {
            unpack(content.get(stream.data..).unwrap_or_default(), &mut unpacked, budget)?;
        }
    }
    Ok(())
}

/// The end is where it belongs, and no archive follows it.
fn check_end(content: &[u8]) -> Result<(), AttachmentRefusal> {
    let tail = content.get(content.len().saturating_sub(END_WITHIN)..).unwrap_or_default();
    let end = tail.windows(5).rposition(|window| window == b"%%EOF").ok_or(AttachmentRefusal::Damaged)?;
    let trailer = tail.get(end + 5..).unwrap_or_default();
    let hides = |signature: &[u8]| trailer.windows(signature.len()).any(|window| window == signature);
    if hides(b"PK\x05\x06") || hides(b"PK\x03\x04") { Err(AttachmentRefusal::Mismatch) } else { Ok(()) }
}

/// Refuses the names of the whole file; answers where it says that an object stream is.
fn check_names(content: &[u8], budget: &Budget) -> Result<Vec<usize>, InspectionFault> {
    budget.take_steps(content.len() as u64)?;
    let mut marked = Vec::new();
    let mut names = NameScanner::default();
    let mut check = |at: usize, name: &[u8]| {
        // Two letters occur by chance in compressed data; a script also needs /JavaScript, which does not.
        if name != b"JS" {
            refuse(name)?;
        }
        if name == b"ObjStm" {
            if marked.len() >= STREAMS_MAX {
                return Err(AttachmentRefusal::NotInspectable);
            }
            marked.push(at);
        }
        Ok(())
    };
    names.feed(content, &mut check)?;
    names.end(content.len(), &mut check)?;
    budget.hold(marked.len() * size_of::<usize>())?;
    Ok(marked)
}

fn refuse(name: &[u8]) -> Result<(), AttachmentRefusal> {
    REFUSED.iter().find(|(refused, _)| *refused == name).map_or(Ok(()), |(_, refusal)| Err(*refusal))
}

/// Finds names in bytes that come in pieces, with `#xx` resolved. Only the current name is kept.
#[derive(Default)]
struct NameScanner {
    is_open: bool,
    name: [u8; Self::NAME_MAX],
    length: usize,
    /// What began as `#xx` and is not whole yet.
    spelt: NameEscape,
}

#[derive(Clone, Copy, Default)]
enum NameEscape {
    #[default]
    No,
    Begun,
    Half(u8),
}

impl NameScanner {
    /// Longer than any name that is looked for.
    const NAME_MAX: usize = 16;

    /// Takes a piece, and hands over each name that ends in it, with where it ends in the piece.
    fn feed<E>(&mut self, piece: &[u8], found: &mut impl FnMut(usize, &[u8]) -> Result<(), E>) -> Result<(), E> {
        for (at, &byte) in piece.iter().enumerate() {
            if self.is_open && is_regular(byte) {
                self.push(byte);
                continue;
            }
            self.end(at, found)?;
            self.is_open = byte == b'/';
        }
        Ok(())
    }

    /// Emits the current name, if there is one.
    fn end<E>(&mut self, at: usize, found: &mut impl FnMut(usize, &[u8]) -> Result<(), E>) -> Result<(), E> {
        if !std::mem::take(&mut self.is_open) {
            return Ok(());
        }
        self.spell_out();
        let length = std::mem::take(&mut self.length);
        // One that is too long is none of ours.
        self.name.get(..length).map_or(Ok(()), |name| found(at, name))
    }

    fn push(&mut self, byte: u8) {
        match (self.spelt, hex(byte)) {
            (NameEscape::Begun, Some(_)) => self.spelt = NameEscape::Half(byte),
            (NameEscape::Half(high), Some(low)) => {
                self.spelt = NameEscape::No;
                self.append(hex(high).unwrap_or_default() << 4 | low);
            }
            _ => {
                self.spell_out();
                match byte {
                    b'#' => self.spelt = NameEscape::Begun,
                    other => self.append(other),
                }
            }
        }
    }

    /// What began as `#xx` and was none stands for itself.
    fn spell_out(&mut self) {
        match std::mem::take(&mut self.spelt) {
            NameEscape::No => {}
            NameEscape::Begun => self.append(b'#'),
            NameEscape::Half(digit) => {
                self.append(b'#');
                self.append(digit);
            }
        }
    }

    fn append(&mut self, byte: u8) {
        if let Some(place) = self.name.get_mut(self.length) {
            *place = byte;
        }
        self.length = (self.length + 1).min(Self::NAME_MAX + 1);
    }
}

/// Neither white space nor a delimiter (ISO 32000-1 §7.2.2).
fn is_regular(byte: u8) -> bool {
    !is_space(byte) && !b"()<>[]{}/%".contains(&byte)
}

fn is_space(byte: u8) -> bool {
    matches!(byte, 0 | 9 | 10 | 12 | 13 | 32)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// A stream that holds objects.
struct ObjectStream {
    /// Where its dictionary begins.
    from: usize,
    /// Where its data begin.
    data: usize,
    /// Compressed with deflate; otherwise its objects were seen with the rest of the file.
    is_packed: bool,
}

/// Every object stream: a stream whose dictionary has the type `/ObjStm`, or `/First`, without which no reader finds the objects.
/// Outlines have `/First`, too, and are no streams.
fn object_streams(content: &[u8], budget: &Budget) -> Result<Vec<ObjectStream>, InspectionFault> {
    budget.take_steps(content.len() as u64)?;
    let mut left = READINGS_MAX * content.len() as u64 + READINGS_FREE;
    let mut streams = Vec::new();
    for (at, window) in content.windows(3).enumerate() {
        if window != b"obj" || content.get(at.wrapping_sub(1)) == Some(&b'd') {
            continue;
        }
        let from = at + 3;
        let mut dictionary = Dictionary { bytes: content, at: from, left, ..Dictionary::default() };
        let data = dictionary.read();
        let used = left - dictionary.left;
        left = dictionary.left;
        budget.take_steps(used)?;
        let Some(data) = data? else { continue };
        if !dictionary.has_type && !dictionary.has_first {
            continue;
        }
        if streams.len() >= STREAMS_MAX {
            return Err(AttachmentRefusal::NotInspectable.into());
        }
        budget.hold(size_of::<ObjectStream>())?;
        streams.push(ObjectStream { from, data, is_packed: dictionary.is_packed()? });
    }
    Ok(streams)
}

/// Whether each place that says that an object stream is there stands in the dictionary of one. Both are in the order of the file.
fn are_covered(marked: &[usize], streams: &[ObjectStream]) -> bool {
    let mut streams = streams.iter().peekable();
    let mut until = 0;
    marked.iter().all(|place| {
        while let Some(stream) = streams.next_if(|stream| stream.from <= *place) {
            until = until.max(stream.data);
        }
        *place <= until
    })
}

/// A dictionary of an object, being read as a reader of PDF would: token by token from behind `obj`.
#[derive(Default)]
struct Dictionary<'a> {
    bytes: &'a [u8],
    at: usize,
    /// How many more bytes may be read as part of dictionaries.
    left: u64,
    has_type: bool,
    has_first: bool,
    is_filtered: bool,
    filters: usize,
    has_deflate: bool,
    /// A text or a comment stands in it, where a word could be a decoy.
    has_text: bool,
}

impl Dictionary<'_> {
    /// Reads to the keyword `stream`; answers where the data begin. `None`: this is no stream.
    fn read(&mut self) -> Result<Option<usize>, AttachmentRefusal> {
        let mut depth = 0_usize;
        let mut is_begun = false;
        while let Some(byte) = self.next()? {
            match byte {
                byte if is_space(byte) => {}
                b'%' => {
                    self.has_text = true;
                    while self.next()?.is_some_and(|byte| !matches!(byte, b'\r' | b'\n')) {}
                }
                b'(' => {
                    self.has_text = true;
                    self.skip_text()?;
                }
                b'<' if self.peek() == Some(b'<') => {
                    self.next()?;
                    depth += 1;
                    is_begun = true;
                }
                b'<' => while self.next()?.is_some_and(|byte| byte != b'>') {},
                b'>' if self.peek() == Some(b'>') => {
                    self.next()?;
                    depth = depth.saturating_sub(1);
                }
                _ if !is_begun => return Ok(None),
                b'/' => self.read_name()?,
                byte if is_regular(byte) => {
                    let start = self.at - 1;
                    while self.peek().is_some_and(is_regular) {
                        self.next()?;
                    }
                    let word = self.bytes.get(start..self.at).unwrap_or_default();
                    if word.starts_with(b"stream") {
                        return Ok(Some(self.data(start + 6)));
                    }
                    if depth == 0 && matches!(word, b"endobj" | b"obj" | b"endstream") {
                        return Ok(None);
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Result<Option<u8>, AttachmentRefusal> {
        let byte = self.peek();
        self.at += usize::from(byte.is_some());
        // What must be read again and again is made so that it hides something.
        self.left = self.left.checked_sub(1).ok_or(AttachmentRefusal::NotInspectable)?;
        Ok(byte)
    }

    /// A text in parentheses, which may hold others.
    fn skip_text(&mut self) -> Result<(), AttachmentRefusal> {
        let mut depth = 1_usize;
        while depth > 0 {
            match self.next()? {
                None => return Ok(()),
                Some(b'\\') => drop(self.next()?),
                Some(b'(') => depth += 1,
                Some(b')') => depth -= 1,
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn read_name(&mut self) -> Result<(), AttachmentRefusal> {
        let start = self.at;
        while self.peek().is_some_and(is_regular) {
            self.next()?;
        }
        let spelt = self.bytes.get(start..self.at).unwrap_or_default();
        let mut names = NameScanner { is_open: true, ..NameScanner::default() };
        let mut take = |_: usize, name: &[u8]| {
            match name {
                b"ObjStm" => self.has_type = true,
                b"First" => self.has_first = true,
                b"Filter" | b"F" => self.is_filtered = true,
                b"FlateDecode" | b"Fl" => {
                    self.has_deflate = true;
                    self.filters += 1;
                }
                b"Crypt" | b"Predictor" => self.filters += 1,
                other if other.ends_with(b"Decode") => self.filters += 1,
                _ => {}
            }
            Ok::<(), AttachmentRefusal>(())
        };
        names.feed(spelt, &mut take)?;
        names.end(spelt.len(), &mut take)
    }

    fn data(&self, at: usize) -> usize {
        let data = self.bytes.get(at..).unwrap_or_default();
        let line_end =
            if data.starts_with(b"\r\n") { 2 } else { usize::from(matches!(data.first(), Some(b'\n' | b'\r'))) };
        at + line_end
    }

    /// Whether the stream is compressed, in the one way that is looked into.
    fn is_packed(&self) -> Result<bool, AttachmentRefusal> {
        match (self.has_text, self.filters, self.has_deflate) {
            // Such a dictionary holds numbers and names.
            (true, ..) => Err(AttachmentRefusal::NotInspectable),
            (false, 0, _) if !self.is_filtered => Ok(false),
            (false, 1, true) => Ok(true),
            _ => Err(AttachmentRefusal::NotInspectable),
        }
    }
}

/// Looks at the names of an object stream, as it is unpacked.
fn unpack(data: &[u8], unpacked: &mut Unpacked, budget: &Budget) -> Result<(), InspectionFault> {
    let mut names = NameScanner::default();
    let mut chunk = [0; 16 * 1024];
    budget.hold(DECODER_BYTES)?;
    let mut decoder = ZlibDecoder::new(data);
    // What follows a damaged place is not seen by readers either; what came before is.
    while let Ok(count @ 1..) = decoder.read(&mut chunk) {
        unpacked.add(count, budget)?;
        names.feed(chunk.get(..count).unwrap_or_default(), &mut |_, name| refuse(name))?;
    }
    budget.release(DECODER_BYTES);
    Ok(names.end(0, &mut |_, name| refuse(name))?)
}
