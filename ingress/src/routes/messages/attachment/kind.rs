//! The kinds of files there are: extensions and media types (specification, Limits).

use super::text::Charset;

/// The extensions that may be sent.
pub(in crate::routes::messages) const EXTENSIONS: [&str; 9] =
    ["pdf", "xlsx", "xls", "csv", "png", "jpg", "jpeg", "docx", "txt"];

/// A kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Pdf,
    Xlsx,
    Xls,
    Csv,
    Png,
    Jpeg,
    Docx,
    Txt,
}

impl Kind {
    /// By extension, in any case.
    pub(super) fn of_extension(extension: &str) -> Option<Self> {
        Some(match extension.to_ascii_lowercase().as_str() {
            "pdf" => Self::Pdf,
            "xlsx" => Self::Xlsx,
            "xls" => Self::Xls,
            "csv" => Self::Csv,
            "png" => Self::Png,
            "jpg" | "jpeg" => Self::Jpeg,
            "docx" => Self::Docx,
            "txt" => Self::Txt,
            _ => return None,
        })
    }

    /// The registered media type.
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

    /// The media type of a text, with how it is encoded.
    pub(super) fn text_type(self, charset: Charset) -> &'static str {
        match (self, charset) {
            (Self::Csv, Charset::Utf8) => "text/csv; charset=utf-8",
            (Self::Csv, Charset::Windows1252) => "text/csv; charset=windows-1252",
            (_, Charset::Utf8) => "text/plain; charset=utf-8",
            (_, Charset::Windows1252) => "text/plain; charset=windows-1252",
        }
    }

    /// Whether a caller may declare it so: the registered type and what programs commonly say, parameters aside.
    pub(super) fn may_be_called(self, declared: &str) -> bool {
        let essence = declared.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let also: &[&str] = match self {
            Self::Csv => &["application/csv", "text/plain", "application/vnd.ms-excel"],
            Self::Jpeg => &["image/jpg"],
            _ => &[],
        };
        essence == self.media_type() || also.contains(&essence.as_str())
    }
}
