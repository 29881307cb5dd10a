//! Labels, and the bounded sets their values come from.

pub(super) use crate::pause_switches::STAGES as STAGE_WORDS;

use schemas::{EventType, ExitReason, Lane, RequestKind, SendState, SkipReason, StepType, answers::Class};

/// A label of a metric.
#[derive(Debug, Clone, Copy)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// What it may say.
    pub values: Values,
}

/// What a label may say.
#[derive(Debug, Clone, Copy)]
pub enum Values {
    /// One of these words.
    Words(fn() -> Vec<&'static str>),
    /// A code of the program's own: lower-case words. These are known before anything happens.
    Codes(&'static [&'static str]),
    /// A route of the API, as OpenAPI writes it; `none` for a path that is none.
    Route,
    /// An HTTP status.
    Status,
    /// What a process runs, and in which version.
    Build,
}

impl Values {
    /// The values that are known before anything happens.
    #[must_use]
    pub fn known(self) -> Vec<&'static str> {
        match self {
            Self::Words(words) => words(),
            Self::Codes(codes) => codes.to_vec(),
            Self::Route | Self::Status | Self::Build => Vec::new(),
        }
    }

    /// Whether a value is one of the set, or at least of its kind.
    #[must_use]
    pub fn allow(self, value: &str) -> bool {
        let made_of = |extra: &[u8]| {
            (1..=80).contains(&value.len())
                && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || extra.contains(&byte))
        };
        match self {
            Self::Words(words) => words().contains(&value),
            Self::Codes(_) => made_of(b"_-.:") && !value.bytes().any(|byte| byte.is_ascii_uppercase()),
            Self::Route => value == "none" || (value.starts_with('/') && made_of(b"/{}_-.*")),
            Self::Status => value.len() == 3 && value.bytes().all(|byte| byte.is_ascii_digit()),
            Self::Build => made_of(b".+-"),
        }
    }

    /// The set in words, for people.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Words(words) => words().join(", "),
            Self::Codes([]) => "a code of the program's own".to_owned(),
            Self::Codes(codes) => format!("{}, or another code of the program's own", codes.join(", ")),
            Self::Route => "a route of the API, as OpenAPI writes it; none for any other path".to_owned(),
            Self::Status => "an HTTP status".to_owned(),
            Self::Build => "what the process was started as".to_owned(),
        }
    }
}

/// Which processes tell a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emitter {
    /// Every process.
    Every,
    /// Those that run one of these parts.
    Parts(&'static [&'static str]),
    /// The runner, of each stage it runs and each lane that stage reads.
    Runner,
}

impl Emitter {
    /// In words, for people.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Every => "every process".to_owned(),
            Self::Parts(parts) => parts.join(", "),
            Self::Runner => "each stage".to_owned(),
        }
    }
}

macro_rules! closed {
    ($set:ty) => {
        Values::Words(|| <$set>::ALL.iter().map(|member| member.as_str()).collect())
    };
}

macro_rules! words {
    ($($word:literal),+ $(,)?) => { Values::Words(|| vec![$($word),+]) };
}
pub(super) use words;

pub(super) const STAGE: Values = Values::Words(|| STAGE_WORDS.to_vec());
/// The stages, and the ingress, which sweeps, too.
pub(super) const PART: Values = Values::Words(|| STAGE_WORDS.into_iter().chain(["ingress"]).collect());
pub(super) const LANE: Values = closed!(Lane);
pub(super) const STATE: Values = closed!(SendState);
pub(super) const SKIP_REASON: Values = closed!(SkipReason);
pub(super) const EVENT: Values = closed!(EventType);
pub(super) const STEP: Values = closed!(StepType);
pub(super) const REQUEST: Values = closed!(RequestKind);
/// What internal systems may publish.
pub(super) const DIRECT: Values =
    words!["campaign-launch", "transactional", "message", "enrollment", "outcome", "contact", "suppression", "unknown"];
/// Operators that take the mail of many domains, and all the others together.
pub(super) const RECEIVER: Values = Values::Words(|| schemas::receiver::families().collect());
pub(super) const STREAM: Values = Values::Words(|| crate::streams::STREAMS.iter().map(|spec| spec.name).collect());
pub(super) const ROLE: Values = words!["ingress", "ingress_by_key", "ingress_reads_by_key", "admission", "stages"];
/// How a request of the API came.
pub(super) const VIA: Values = words!["http", "bus"];
pub(super) const METHOD: Values = words!["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "other"];
pub(super) const PROVIDER: Values = words!["ses", "postmark", "sendgrid", "mailgun", "resend"];
/// Who told a fact: a provider, or a link that a recipient followed.
pub(super) const SOURCE: Values = words!["ses", "postmark", "sendgrid", "mailgun", "resend", "link"];
pub(super) const SIGNAL: Values =
    words!["opened", "clicked", "unsubscribed", "delivered", "complained", "bounced", "replied", "any"];
/// What a receiving server's answer meant.
pub(super) const ANSWER: Values =
    Values::Words(|| Class::ALL.iter().map(|class| class.as_str()).chain(["accepted", "no_answer"]).collect());
/// Why a send failed for good: what the last answer meant, or a code of rendering and delivery.
pub(super) const FAILURE: Values = Values::Codes(&[
    "hard",
    "mailbox_full",
    "inactive",
    "block",
    "content",
    "policy",
    "temporary",
    "routing",
    "render",
    "invalid_address",
]);
pub(super) const ENROLLMENT_END: Values =
    Values::Words(|| ExitReason::ALL.iter().map(|reason| reason.as_str()).chain(["completed"]).collect());
