//! Labels, and the bounded sets their values come from.

use schemas::{
    DirectKind, EventType, ExitReason, Lane, ProviderKind, RequestKind, SendState, SkipReason, StepType, answers::Class,
};

use crate::{StageName, stage_name};

/// A label of a metric.
#[derive(Debug, Clone, Copy)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// Its possible values.
    pub values: Values,
}

/// The possible values of a label.
#[derive(Debug, Clone, Copy)]
pub enum Values {
    /// One of these values.
    OneOf(fn() -> Vec<&'static str>),
    /// A code of the program, in lower case. The listed ones are exported from the start.
    Codes(&'static [&'static str]),
    /// A route of the API, as OpenAPI writes it; `none` for a path that is none.
    Route,
    /// An HTTP status.
    Status,
    /// The parts a process runs, and its version.
    Build,
}

impl Values {
    /// The values that are exported from the start.
    #[must_use]
    pub fn known(self) -> Vec<&'static str> {
        match self {
            Self::OneOf(one_of) => one_of(),
            Self::Codes(codes) => codes.to_vec(),
            Self::Route | Self::Status | Self::Build => Vec::new(),
        }
    }

    /// True if a value is one of the set, or at least has its form.
    #[must_use]
    pub fn allow(self, value: &str) -> bool {
        let made_of = |extra: &[u8]| {
            (1..=80).contains(&value.len())
                && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || extra.contains(&byte))
        };
        match self {
            Self::OneOf(one_of) => one_of().contains(&value),
            Self::Codes(_) => made_of(b"_-.:") && !value.bytes().any(|byte| byte.is_ascii_uppercase()),
            Self::Route => value == "none" || (value.starts_with('/') && made_of(b"/{}_-.*")),
            Self::Status => value.len() == 3 && value.bytes().all(|byte| byte.is_ascii_digit()),
            Self::Build => made_of(b".+-"),
        }
    }
}

/// Which processes export a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emitter {
    /// Every process.
    Every,
    /// Processes that run one of these parts.
    Parts(&'static [&'static str]),
    /// The runner, of each stage it runs and each lane that stage reads.
    Runner,
}

macro_rules! closed {
    ($set:ty) => {
        Values::OneOf(|| <$set>::NAMES.to_vec())
    };
}

macro_rules! one_of {
    ($($word:literal),+ $(,)?) => { Values::OneOf(|| vec![$($word),+]) };
}
pub(super) use one_of;

pub(super) const STAGE: Values = closed!(StageName);
/// The stages, and the ingress, which sweeps, too.
pub(super) const PART: Values = Values::OneOf(|| stage_name::process_parts().collect());
pub(super) const LANE: Values = closed!(Lane);
pub(super) const STATE: Values = closed!(SendState);
pub(super) const SKIP_REASON: Values = closed!(SkipReason);
pub(super) const EVENT: Values = closed!(EventType);
pub(super) const STEP: Values = closed!(StepType);
pub(super) const REQUEST: Values = closed!(RequestKind);
/// Requests that internal systems may publish.
pub(super) const DIRECT: Values = Values::OneOf(|| [DirectKind::NAMES, &["unknown"]].concat());
/// Operators that receive the mail of many domains, and all others together.
pub(super) const RECEIVER: Values = Values::OneOf(|| schemas::receiver::families().collect());
pub(super) const STREAM: Values = Values::OneOf(|| crate::streams::STREAMS.iter().map(|spec| spec.name).collect());
pub(super) const ROLE: Values = one_of!["ingress", "ingress_by_key", "stages", "stages_by_key"];
/// The transport of an API request.
pub(super) const VIA: Values = one_of!["http", "bus"];
pub(super) const METHOD: Values = one_of!["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "other"];
pub(super) const PROVIDER: Values = Values::OneOf(|| ProviderKind::HTTP.to_vec());
/// The source of a fact: a provider, `other` for one that this version does not know, or a tracking link.
pub(super) const SOURCE: Values = Values::OneOf(|| ProviderKind::HTTP.into_iter().chain(["link", "other"]).collect());
pub(super) const SIGNAL: Values =
    one_of!["opened", "clicked", "unsubscribed", "delivered", "complained", "bounced", "replied", "any"];
/// The class of a receiving server's answer.
pub(super) const ANSWER: Values = Values::OneOf(|| [Class::NAMES, &["accepted", "no_answer"]].concat());
/// Why a send failed for good: the class of the last answer, or a code of rendering and delivery.
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
pub(super) const ENROLLMENT_END: Values = Values::OneOf(|| [ExitReason::NAMES, &["completed"]].concat());
