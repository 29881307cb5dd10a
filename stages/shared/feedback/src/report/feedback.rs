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
    /// The token of the unsubscribe link in that header.
    leaving_token: Option<String>,
}

impl Proofs {
    /// The send the report is about. Its tenant as well, where the token names it.
    pub fn send(&self, tokens: &TokenKeys) -> Option<(Option<Uuid>, Uuid)> {
        self.returned(tokens).next().map(|send| (None, send)).or_else(|| {
            let claims = self.leaving(tokens)?;
            Some((Some(claims.tenant_id), claims.send_id))
        })
    }

    /// True if a return path proves this send. An ordinary forward leaves it out, one as an attachment carries it; the unsubscribe link
    /// goes along with every forward.
    #[must_use]
    pub fn is_returned(&self, send: Uuid, tokens: &TokenKeys) -> bool {
        self.returned(tokens).any(|returned| returned == send)
    }

    /// Tenant and contact, where the token names them: for a send that is not kept any more. The token must be that send's.
    #[must_use]
    pub fn contact(&self, send: Uuid, tokens: &TokenKeys) -> Option<(Uuid, Uuid)> {
        let claims = self.leaving(tokens).filter(|claims| claims.send_id == send)?;
        Some((claims.tenant_id, claims.contact()?))
    }

    fn returned(&self, tokens: &TokenKeys) -> impl Iterator<Item = Uuid> {
        let paths = self.original_mail_from.iter().chain(&self.return_path);
        paths.filter_map(move |path| crate::returned_send(path, tokens))
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
    Some(of_type(fields.iter().find_map(|group| group.get("feedback-type")).unwrap_or("other")))
}

/// What a report of this feedback type says, whether it came by mail or a provider names it.
pub(crate) fn of_type(feedback_type: &str) -> ReportFinding {
    let kind = feedback_type.to_ascii_lowercase();
    match kind.as_str() {
        // RFC 6591: an authentication failure, which is no complaint.
        "auth-failure" | "dmarc" => ReportFinding::NoFact(NoFactReason::AuthFailure),
        "opt-out" | "opt-out-list" => ReportFinding::Fact(crate::opt_out()),
        "abuse" | "fraud" | "virus" | "other" | "not-spam" => complaint(&kind),
        unknown => complaint(&unknown.chars().filter(char::is_ascii_graphic).take(TYPE_CHARS).collect::<String>()),
    }
}

fn complaint(kind: &str) -> ReportFinding {
    ReportFinding::Fact(SignalKind::Complained { feedback_type: kind.to_owned() })
}

/// The token in `<https://link.example/u/<token>>`.
fn leaving_token(field: &str) -> Option<&str> {
    let (_, rest) = field.split_once("/u/")?;
    rest.split(['>', '?', ',', ' ', '\r', '\n']).next()
}
