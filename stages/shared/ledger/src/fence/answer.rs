//! The answer of a server or provider.

/// The answer of a server or provider, as the ledger stores it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The SMTP code.
    pub code: Option<i16>,
    /// The enhanced status code.
    pub enhanced: Option<String>,
    /// At most [`Answer::TEXT_MAX`] characters.
    pub text: Option<String>,
}

impl Answer {
    /// The most characters kept.
    pub const TEXT_MAX: usize = 500;

    /// An answer without a code.
    #[must_use]
    pub fn text(text: &str) -> Self {
        let kept: String = text.chars().filter(|c| *c != '\0').take(Self::TEXT_MAX).collect();
        Self { text: Some(kept).filter(|kept| !kept.is_empty()), ..Self::default() }
    }
}
