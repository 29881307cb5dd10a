//! The mail providers.

crate::named_enum! {
    /// The kinds of providers. The ledger, settings and metrics use the same word for each.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum ProviderKind {
        /// An SMTP relay.
        Smtp = "smtp",
        /// Amazon SES, API v2, raw messages.
        Ses = "ses",
        /// Postmark.
        Postmark = "postmark",
        /// SendGrid, v3.
        Sendgrid = "sendgrid",
        /// Mailgun, MIME messages.
        Mailgun = "mailgun",
        /// Resend.
        Resend = "resend",
    }
}

impl ProviderKind {
    /// The providers that take mail and report what became of it by HTTP: all but relays.
    pub const HTTP: [&'static str; 5] = [
        Self::Ses.as_str(),
        Self::Postmark.as_str(),
        Self::Sendgrid.as_str(),
        Self::Mailgun.as_str(),
        Self::Resend.as_str(),
    ];
}
