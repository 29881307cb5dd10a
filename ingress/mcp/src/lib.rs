//! The assistant endpoint (`/mcp`): what AI assistants of an allow-listed pilot may ask about one workspace.
//!
//! An OAuth 2.1 resource server in front of a fixed set of tools. A token of the configured issuer says who asks; an approval
//! row, made by an operator, says about which workspace; the tools say how much. They answer campaign metadata and counts, and
//! with a consent of its own one saves a proposal for a person to read.
//!
//! **Invariant:** no tool answers anything about fewer than five people, and none can reach a contact, an address, or anything
//! that sends. The tools are the members of [`Tool`], each with its own statements; there is no query language.
//!
//! Without an issuer in the settings the endpoint does not exist.

mod approval;
mod clean_text;
mod endpoint;
mod keys;
mod protocol;
mod refusal;
mod settings;
mod small_counts;
mod token;
mod tools;

use std::sync::Arc;

use async_trait::async_trait;
use ledger::quota::QuotaDefaults;
use sqlx::PgPool;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use self::{approval::Approval, tools::Tool};

pub use endpoint::{ProtectedResource, answer, metadata};
pub use settings::{Settings, StartError, is_issuer};

/// The path of the endpoint.
pub const PATH: &str = "/mcp";
/// The path of the OAuth protected resource metadata (RFC 9728).
pub const METADATA_PATH: &str = "/.well-known/oauth-protected-resource";
/// The path of the same metadata with the path of the endpoint inserted, as RFC 9728 §3.1 derives it.
pub const METADATA_PATH_OF_ENDPOINT: &str = "/.well-known/oauth-protected-resource/mcp";

/// The rate limit of the API, which holds for assistants, too.
#[async_trait]
pub trait RateLimit: std::fmt::Debug + Send + Sync {
    /// Counts a request under `key`, which may make `per_minute` of them in any sixty seconds. Answers, for one too many, the seconds until
    /// there is room again.
    ///
    /// # Errors
    /// [`NotCounted`] when Postgres is away.
    async fn count(&self, key: Uuid, per_minute: u32) -> Result<Option<u32>, NotCounted>;
}

/// A request could not be counted: nothing is known of it.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the request could not be counted")]
pub struct NotCounted;

/// What the endpoint is built from.
#[derive(Debug, Clone)]
pub struct AssistantDeps {
    /// A pool in the ingress's role: sees a tenant's rows only inside a confined transaction.
    pub pool: PgPool,
    /// Counts the requests of each approval.
    pub rate: Arc<dyn RateLimit>,
    /// Calls in progress: awaited at shutdown.
    pub tasks: TaskTracker,
    /// The send quota of tenants without one of their own.
    pub quota: QuotaDefaults,
}

/// The endpoint.
#[derive(Debug)]
pub struct Assistant {
    deps: AssistantDeps,
    terms: settings::Terms,
    keys: keys::KeySource,
}

impl Assistant {
    /// The endpoint the settings describe; `None` where they name no issuer. Touches neither network nor database.
    ///
    /// # Errors
    /// [`StartError`] for settings that contradict each other.
    pub fn new(deps: AssistantDeps, settings: &Settings) -> Result<Option<Arc<Self>>, StartError> {
        let Some(terms) = settings.terms()? else { return Ok(None) };
        Ok(Some(Arc::new(Self { deps, terms, keys: keys::KeySource::new()? })))
    }
}
