//! A cache of what a message needs besides its placeholder values: skeletons and DKIM keys.

use std::{sync::Arc, time::Duration};

use moka::future::Cache;
use runner::StageError;
use runtime::Vault;
use schemas::{Rendered, Skeleton, SkeletonId, token::TokenKeys};
use sqlx::PgPool;
use uuid::Uuid;

use super::{attachments::Attachments, routes::ProviderRoute};
use crate::provider::Signing;
use dkim::{DkimKey, DkimSigner, SigningThreads};

/// Size of the skeleton cache, in bytes of memory.
const SKELETON_BYTES: u64 = 48 * 1024 * 1024;
/// Size of the signer cache.
const SIGNERS: u64 = 2_000;
/// How long a signer is cached: a rotated key is used after this time at the latest.
const SIGNER_LIFE: Duration = Duration::from_secs(300);

/// The skeleton and the signer of one message.
#[derive(Clone)]
pub(crate) struct MessageSource {
    pub skeleton: Arc<Skeleton>,
    /// `None`: the provider signs.
    pub signer: Option<Arc<DkimSigner>>,
}

/// Loads and caches skeletons and signers.
pub(crate) struct SourceCache {
    pool: PgPool,
    vault: Arc<Vault>,
    sign: bool,
    pub threads: SigningThreads,
    pub attachments: Attachments,
    /// Makes the tokens of addresses.
    pub tokens: Arc<TokenKeys>,
    skeletons: Cache<(Uuid, SkeletonId), Arc<Skeleton>>,
    signers: Cache<(Uuid, String, bool), Arc<DkimSigner>>,
}

impl SourceCache {
    pub fn new(pool: PgPool, vault: Arc<Vault>, sign: bool, tokens: Arc<TokenKeys>) -> Self {
        let weight = |_: &(Uuid, SkeletonId), skeleton: &Arc<Skeleton>| {
            u32::try_from(skeleton.memory_bytes()).unwrap_or(u32::MAX)
        };
        Self {
            attachments: Attachments::new(pool.clone()),
            pool,
            vault,
            sign,
            threads: SigningThreads::start(),
            tokens,
            skeletons: Cache::builder().max_capacity(SKELETON_BYTES).weigher(weight).build(),
            signers: Cache::builder().max_capacity(SIGNERS).time_to_live(SIGNER_LIFE).build(),
        }
    }

    /// Returns one source per message, in order.
    ///
    /// # Errors
    /// Rejects a message whose skeleton or key cannot be loaded: it needs an operator.
    pub async fn parts(&self, inputs: &[Rendered], routes: &[ProviderRoute]) -> Result<Vec<MessageSource>, StageError> {
        let mut parts = Vec::with_capacity(inputs.len());
        for (input, route) in inputs.iter().zip(routes) {
            let skeleton = self.skeleton(input.tenant_id, &input.skeleton).await?;
            let stamped = match route.provider.signing() {
                Signing::Whole | Signing::Stamped if route.is_platform() && !self.sign => None,
                Signing::Whole => Some(false),
                Signing::Stamped => Some(true),
                Signing::None => None,
            };
            let signer = match stamped {
                Some(stamped) => Some(self.signer(input.tenant_id, &input.sending_domain, stamped).await?),
                None => None,
            };
            parts.push(MessageSource { skeleton, signer });
        }
        Ok(parts)
    }

    async fn skeleton(&self, tenant: Uuid, id: &SkeletonId) -> Result<Arc<Skeleton>, StageError> {
        let key = (tenant, id.clone());
        if let Some(skeleton) = self.skeletons.get(&key).await {
            return Ok(skeleton);
        }
        let body = sqlx::query_scalar!("select body from skeletons where tenant_id = $1 and id = $2", tenant, id.0)
            .fetch_optional(&self.pool)
            .await?
            .ok_or_else(|| StageError::rejected("unknown_skeleton", &id.0))?;
        let skeleton: Arc<Skeleton> = Arc::new(serde_json::from_value(body)?);
        self.skeletons.insert(key, skeleton.clone()).await;
        Ok(skeleton)
    }

    /// The signer of a domain. `stamped`: for a provider that replaces Message-ID and Date.
    async fn signer(&self, tenant: Uuid, domain: &str, stamped: bool) -> Result<Arc<DkimSigner>, StageError> {
        let key = (tenant, domain.to_owned(), stamped);
        if let Some(signer) = self.signers.get(&key).await {
            return Ok(signer);
        }
        let row = sqlx::query!(
            "select selector, dkim_private, case when second_published then second_selector end as second_selector,
                    second_private
             from domains where tenant_id = $1 and domain = $2",
            tenant,
            domain
        )
        .fetch_optional(&self.pool)
        .await?
        .ok_or_else(|| StageError::rejected("unknown_domain", "no such sending domain"))?;
        let mut signer = DkimSigner::new(domain, row.selector, self.open(tenant, &row.dkim_private)?);
        if let (Some(selector), Some(private)) = (row.second_selector, row.second_private) {
            signer = signer.and(selector, self.open(tenant, &private)?);
        }
        let signer = Arc::new(if stamped { signer.without(&["Message-ID", "Date"]) } else { signer });
        self.signers.insert(key, signer.clone()).await;
        Ok(signer)
    }

    fn open(&self, tenant: Uuid, private: &[u8]) -> Result<DkimKey, StageError> {
        let private =
            self.vault.open(tenant, "dkim", private).map_err(|error| StageError::rejected("dkim_key", error))?;
        DkimKey::from_pkcs8(&private).map_err(|error| StageError::rejected("dkim_key", error))
    }
}
