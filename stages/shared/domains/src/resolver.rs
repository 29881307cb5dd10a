//! Our own resolver: configured servers, no cache, no hosts file, short timeouts.

use std::{net::SocketAddr, time::Duration};

use hickory_resolver::{
    TokioResolver,
    net::{DnsError, NetError},
    proto::rr::{RData, RecordType as WireType},
};
use runtime::{Budget, outbound::dns};

use super::{RecordType, answer};

/// Which servers to ask and how long to wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsSettings {
    /// Recursive servers; empty takes those of the system.
    pub servers: Vec<SocketAddr>,
    /// Wait for one answer.
    pub timeout: Duration,
    /// How often one question is asked before it counts as unanswered.
    pub attempts: usize,
}

impl Default for DnsSettings {
    fn default() -> Self {
        Self { servers: Vec::new(), timeout: Duration::from_secs(3), attempts: 2 }
    }
}

/// The resolver cannot be set up. Shown at start.
#[derive(Debug, thiserror::Error)]
#[error("the DNS resolver cannot be set up")]
pub struct ResolverError(#[source] NetError);

/// Why a question brought nothing to compare.
#[derive(Debug)]
pub(super) enum LookupError {
    /// No server gave a definite answer in time. It says nothing about the record: ask again later.
    Undetermined,
    /// The answer is longer than any that is asked for.
    TooLong,
}

/// Asks the DNS.
#[derive(Clone)]
pub struct DnsResolver {
    resolver: TokioResolver,
    limit: Duration,
}

impl DnsResolver {
    /// A resolver for these settings.
    ///
    /// # Errors
    /// [`ResolverError`] when no servers are given and the system's cannot be read.
    pub fn new(settings: &DnsSettings) -> Result<Self, ResolverError> {
        let resolver = dns::resolver(&settings.servers, |options| {
            options.timeout = settings.timeout;
            options.attempts = settings.attempts;
            // A tenant who has just published a record and presses "verify" must not read an old answer.
            options.cache_size = 0;
        });
        let resolver = resolver.map_err(ResolverError)?;
        let tries = u32::try_from(settings.attempts.saturating_add(2)).unwrap_or(u32::MAX);
        Ok(Self { resolver, limit: settings.timeout.saturating_mul(tries) })
    }

    /// The records of a name: TXT, each with its strings joined, or the CNAME in lower case without the last dot. None when there is no
    /// such name or record.
    pub(super) async fn lookup(&self, type_: RecordType, name: &str) -> Result<Vec<String>, LookupError> {
        match type_ {
            RecordType::Txt => {
                let answers = self.ask(name, WireType::TXT).await?;
                let records = answers.iter().filter_map(|data| match data {
                    RData::TXT(txt) => Some(txt.txt_data.iter().map(AsRef::as_ref)),
                    _ => None,
                });
                answer::texts(records, &Budget::new(answer::LIMITS)).map_err(|_| LookupError::TooLong)
            }
            RecordType::Cname => {
                let answers = self.ask(name, WireType::CNAME).await?;
                let targets = answers.iter().filter_map(|data| match data {
                    RData::CNAME(target) => Some(target.0.to_ascii().trim_end_matches('.').to_ascii_lowercase()),
                    _ => None,
                });
                Ok(targets.collect())
            }
        }
    }

    async fn ask(&self, name: &str, record_type: WireType) -> Result<Vec<RData>, LookupError> {
        let name = dns::absolute_name(name).map_err(|_| LookupError::Undetermined)?;
        match tokio::time::timeout(self.limit, self.resolver.lookup(name, record_type)).await {
            Ok(Ok(lookup)) => Ok(lookup.answers().iter().map(|record| record.data.clone()).collect()),
            // NXDOMAIN and "no such type" are definite: there is no record.
            Ok(Err(NetError::Dns(DnsError::NoRecordsFound(_)))) => Ok(Vec::new()),
            Ok(Err(_)) | Err(_) => Err(LookupError::Undetermined),
        }
    }
}
