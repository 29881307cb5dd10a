//! Reports of complaints (ARF, RFC 5965), and the mails that providers without ARF send back as they were.

use schemas::{
    SignalKind,
    token::{Purpose, TokenClaims, TokenKeys},
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Arrival, NoFactReason, ReportFinding, header::MailHeader, parts::MailParts};

/// The stored form of an unregistered type.
const TYPE_CHARS: usize = 32;

/// Parts of a complaint report that only we can have written, as the mail has them: which send they name is known after
/// their signatures are checked.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proofs {
    /// The return path, as the report names it.
    original_mail_from: Option<String>,
    /// The return path in the header of the mail it carries.
    return_path: Option<String>,
    /// The token of the link to leave by in that header.
    leaving_token: Option<String>,
}

impl Proofs {
    /// The send the report is about. Its tenant as well, where the token names it.
    pub fn send(&self, tokens: &TokenKeys) -> Option<(Option<Uuid>, Uuid)> {
        let paths = self.original_mail_from.iter().chain(&self.return_path);
        let returned = paths.filter_map(|path| crate::returned_send(path, tokens)).next();
        returned.map(|send| (None, send)).or_else(|| {
            let claims = self.leaving(tokens)?;
            Some((Some(claims.tenant_id), claims.send_id))
        })
    }

    /// Tenant and contact, where the token names them: for a send that is not kept any more.
    #[must_use]
    pub fn contact(&self, tokens: &TokenKeys) -> Option<(Uuid, Uuid)> {
        let claims = self.leaving(tokens)?;
        Some((claims.tenant_id, claims.contact()?))
    }

    fn leaving(&self, tokens: &TokenKeys) -> Option<TokenClaims> {
        tokens.open(Purpose::Unsubscribe, self.leaving_token.as_deref()?).ok()
    }
}

/// Collects what a mail can prove. `reported`: the fields of its report.
pub(super) fn proofs(reported: Option<&[MailHeader]>, carried: Option<&MailHeader>) -> Proofs {
    let field = |name: &str| reported?.iter().find_map(|group| group.get(name)).map(str::to_owned);
    Proofs {
        original_mail_from: field("original-mail-from"),
        return_path: carried.and_then(|carried| carried.get("return-path")).map(str::to_owned),
        leaving_token: carried.and_then(|carried| leaving_token(carried.get("list-unsubscribe")?)).map(str::to_owned),
    }
}

/// Reads a report, of which `fields` are known; `None` when the mail is none.
pub(super) fn read(mail: &MailParts, fields: Option<&[MailHeader]>, arrival: Arrival) -> Option<ReportFinding> {
    let Some(fields) = fields else {
        // Outlook's programme and others: the mail itself, attached to nothing.
        let bare = arrival == Arrival::Feedback && mail.carried.is_some() && mail.status.is_none();
        return bare.then(|| complaint("abuse"));
    };
    let kind = fields.iter().find_map(|group| group.get("feedback-type")).unwrap_or("other").to_ascii_lowercase();
    Some(match kind.as_str() {
        // RFC 6591: an authentication failure, which is no complaint.
        "auth-failure" | "dmarc" => ReportFinding::NoFact(NoFactReason::AuthFailure),
        "opt-out" | "opt-out-list" => ReportFinding::Fact(SignalKind::Unsubscribed { method: "provider".to_owned() }),
        "abuse" | "fraud" | "virus" | "other" | "not-spam" => complaint(&kind),
        unknown => complaint(&unknown.chars().filter(char::is_ascii_graphic).take(TYPE_CHARS).collect::<String>()),
    })
}

fn complaint(kind: &str) -> ReportFinding {
    ReportFinding::Fact(SignalKind::Complained { feedback_type: kind.to_owned() })
}

/// The token in `<https://link.example/u/<token>>`.
fn leaving_token(field: &str) -> Option<&str> {
    let (_, rest) = field.split_once("/u/")?;
    rest.split(['>', '?', ',', ' ', '\r', '\n']).next()
}
