//! File names: what every system can store, and what does not pretend to be something else.

use schemas::text;
use unicode_normalization::is_nfc;

use super::kind::{EXTENSIONS, FileKind};

/// Longest file name, in characters.
pub(in crate::api::messages) const NAME_MAX_CHARS: usize = 200;
/// Longest file name, in bytes: what file systems store.
const NAME_MAX_BYTES: usize = 255;
/// Extensions that a name must not carry before its last one: `invoice.exe.pdf` wants to be mistaken.
const POSING: [&str; 26] = [
    "exe", "scr", "pif", "bat", "cmd", "msi", "js", "jse", "vbs", "vbe", "wsf", "hta", "ps1", "jar", "lnk", "html",
    "htm", "svg", "php", "sh", "iso", "zip", "rar", "docm", "xlsm", "dll",
];
/// Names that Windows keeps for devices, whatever extension follows.
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "conin$", "conout$"];

/// What is wrong with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameFault {
    Empty,
    TooLong,
    Character,
    Invisible,
    Shape,
    Device,
    Extension,
    Posing,
}

impl NameFault {
    /// The code of the fault, and a text for people.
    pub(super) fn fault(self) -> (&'static str, String) {
        let (code, detail) = match self {
            Self::Empty => ("empty", "must not be empty"),
            Self::TooLong => {
                let detail = format!("may have at most {NAME_MAX_CHARS} characters and {NAME_MAX_BYTES} bytes");
                return ("too_long", detail);
            }
            Self::Character => {
                ("bad_character", "must not contain path separators, control characters or any of < > : \" | ? *")
            }
            Self::Invisible => {
                ("invisible_character", "must not contain characters that change direction or show nothing")
            }
            Self::Shape => (
                "bad_name",
                "must be a plain file name in NFC, without a leading dot or space or a space before the extension",
            ),
            Self::Device => ("reserved_name", "is a name that Windows reserves"),
            Self::Extension => {
                return ("extension_not_allowed", format!("must have one of the extensions {}", EXTENSIONS.join(", ")));
            }
            Self::Posing => ("double_extension", "has a second extension that makes it look like something else"),
        };
        (code, detail.to_owned())
    }
}

/// The kind of file a name says.
pub(super) fn check(name: &str) -> Result<FileKind, NameFault> {
    if name.trim().is_empty() {
        return Err(NameFault::Empty);
    }
    if name.chars().count() > NAME_MAX_CHARS || name.len() > NAME_MAX_BYTES {
        return Err(NameFault::TooLong);
    }
    if name.chars().any(|letter| letter.is_control() || "/\\<>:\"|?*".contains(letter)) {
        return Err(NameFault::Character);
    }
    if name.chars().any(is_invisible) {
        return Err(NameFault::Invisible);
    }
    let (stem, extension) = name.rsplit_once('.').ok_or(NameFault::Extension)?;
    let kind = FileKind::of_extension(extension).ok_or(NameFault::Extension)?;
    if stem.is_empty() || stem.starts_with(['.', ' ']) || stem.ends_with(['.', ' ']) || !is_nfc(name) {
        return Err(NameFault::Shape);
    }
    let mut parts = stem.split('.').map(|part| part.trim().to_ascii_lowercase());
    if parts.next().is_some_and(|first| is_device(&first)) {
        return Err(NameFault::Device);
    }
    if parts.any(|part| POSING.contains(&part.as_str())) {
        return Err(NameFault::Posing);
    }
    Ok(kind)
}

/// Characters that show nothing or change direction, in a file name also the tags of flags and odd spaces.
fn is_invisible(c: char) -> bool {
    text::is_invisible(c) || ('\u{e0000}'..='\u{e007f}').contains(&c) || (c.is_whitespace() && c != ' ')
}

fn is_device(part: &str) -> bool {
    let numbered = |device: &str| {
        part.strip_prefix(device).is_some_and(|rest| rest.len() == 1 && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    DEVICES.contains(&part) || numbered("com") || numbered("lpt")
}
