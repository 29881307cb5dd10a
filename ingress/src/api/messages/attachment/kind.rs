//! The kinds of files there are: extensions and media types.

use super::text::Charset;

/// The extensions that may be sent.
pub(in crate::api::messages) const EXTENSIONS: [&str; 9] =
    ["pdf", "xlsx", "xls", "csv", "png", "jpg", "jpeg", "docx", "txt"];

schemas::named_enum! {
    /// A kind of file, by its extension. `jpg` is another one of [`FileKind::Jpeg`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum FileKind {
        Pdf = "pdf",
        Xlsx = "xlsx",
        Xls = "xls",
        Csv = "csv",
        Png = "png",
        Jpeg = "jpeg",
        Docx = "docx",
        Txt = "txt",
    }
}

impl FileKind {
    /// By extension, in any case.
    pub(super) fn of_extension(extension: &str) -> Option<Self> {
        match extension.to_ascii_lowercase().as_str() {
            "jpg" => Some(Self::Jpeg),
            other => Self::parse(other),
        }
    }

    /// The kind that is this byte of a job of another process.
    pub(super) fn of_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// Whether the HTML of a mail can show it.
    pub(super) fn is_image(self) -> bool {
        matches!(self, Self::Png | Self::Jpeg)
    }

    pub(super) fn is_text(self) -> bool {
        matches!(self, Self::Csv | Self::Txt)
    }

    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Pdf => "application/pdf",
            Self::Xlsx => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
            Self::Xls => "application/vnd.ms-excel",
            Self::Csv => "text/csv",
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Docx => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
            Self::Txt => "text/plain",
        }
    }

    /// The media type to send it with, for a text with how it is encoded.
    pub(super) fn sent_as(self, charset: Option<Charset>) -> &'static str {
        match (self, charset) {
            (Self::Csv, Some(Charset::Ascii | Charset::Utf8)) => "text/csv; charset=utf-8",
            (Self::Csv, Some(Charset::Windows1252)) => "text/csv; charset=windows-1252",
            (Self::Txt, Some(Charset::Ascii | Charset::Utf8)) => "text/plain; charset=utf-8",
            (Self::Txt, Some(Charset::Windows1252)) => "text/plain; charset=windows-1252",
            _ => self.media_type(),
        }
    }

    /// Whether a caller may declare a file of this name so: the registered type and what programs commonly say. A `name` must be the
    /// file's, and only a text has a `charset`, which is compared with the content ([`DeclaredType::agrees`]); other parameters say what
    /// no check reads.
    pub(super) fn declared(self, text: &str, filename: &str) -> Option<DeclaredType> {
        let mut parts = text.split(';').map(str::trim);
        let essence = parts.next().unwrap_or_default().to_ascii_lowercase();
        let also: &[&str] = match self {
            Self::Csv => &["application/csv", "text/plain", "application/vnd.ms-excel"],
            Self::Jpeg => &["image/jpg"],
            _ => &[],
        };
        if essence != self.media_type() && !also.contains(&essence.as_str()) {
            return None;
        }
        let mut declared = DeclaredType::default();
        for part in parts {
            let (name, value) = part.split_once('=')?;
            let value = value.trim().trim_matches('"');
            match name.trim().to_ascii_lowercase().as_str() {
                "name" if value == filename => {}
                "charset" if self.is_text() && declared.charset.is_none() => {
                    declared.charset = Some(value.to_ascii_lowercase());
                }
                // RFC 4180 §3.
                "header" if self == Self::Csv && matches!(value, "present" | "absent") => {}
                _ => return None,
            }
        }
        Some(declared)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DeclaredType {
    charset: Option<String>,
}

impl DeclaredType {
    /// Whether the content is encoded as declared.
    pub(super) fn agrees(&self, found: Option<Charset>) -> bool {
        let Some(declared) = self.charset.as_deref() else { return true };
        match found {
            None => false,
            Some(Charset::Ascii) => {
                matches!(declared, "us-ascii" | "ascii" | "utf-8" | "utf8" | "windows-1252" | "cp1252" | "iso-8859-1")
            }
            Some(Charset::Utf8) => matches!(declared, "utf-8" | "utf8"),
            Some(Charset::Windows1252) => matches!(declared, "windows-1252" | "cp1252" | "iso-8859-1"),
        }
    }
}
