//! File names: what every system can store, and what does not pretend to be something else.

use std::borrow::Cow;

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

/// The kind of file a name says, or the code of its fault and a text for people.
pub(super) fn check(name: &str) -> Result<FileKind, (&'static str, Cow<'static, str>)> {
    if name.trim().is_empty() {
        return Err(("empty", "must not be empty".into()));
    }
    if name.chars().count() > NAME_MAX_CHARS || name.len() > NAME_MAX_BYTES {
        let detail = format!("may have at most {NAME_MAX_CHARS} characters and {NAME_MAX_BYTES} bytes");
        return Err(("too_long", detail.into()));
    }
    if name.chars().any(|letter| letter.is_control() || "/\\<>:\"|?*".contains(letter)) {
        let detail = "must not contain path separators, control characters or any of < > : \" | ? *";
        return Err(("bad_character", detail.into()));
    }
    if name.chars().any(is_invisible) {
        let detail = "must not contain characters that change direction or show nothing";
        return Err(("invisible_character", detail.into()));
    }
    let parts = name.rsplit_once('.');
    let Some((stem, kind)) = parts.and_then(|(stem, last)| Some((stem, FileKind::of_extension(last)?))) else {
        let detail = format!("must have one of the extensions {}", EXTENSIONS.join(", "));
        return Err(("extension_not_allowed", detail.into()));
    };
    if stem.is_empty() || stem.starts_with(['.', ' ']) || stem.ends_with(['.', ' ']) || !is_nfc(name) {
        let detail = "must be a plain file name in NFC, without a leading dot or space or a space before the extension";
        return Err(("bad_name", detail.into()));
    }
    let mut parts = stem.split('.').map(|part| part.trim().to_ascii_lowercase());
    if parts.next().is_some_and(|first| is_device(&first)) {
        return Err(("reserved_name", "is a name that Windows reserves".into()));
    }
    if parts.any(|part| POSING.contains(&part.as_str())) {
        return Err(("double_extension", "has a second extension that makes it look like something else".into()));
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
