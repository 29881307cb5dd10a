//! Loads and compiles the content of a batch, and caches it. Contents never change; senders, campaign names and field fallbacks may, so
//! a cached message is compiled again after a minute.

use std::{collections::HashMap, sync::Arc, time::Duration};

use moka::future::Cache;
use runner::StageError;
use runtime::plans::PreparedPool;
use schemas::{Classification, Cleared, MessageKind, SkeletonId, messages::MailOptions, token::TRACKING_LABEL};
use sqlx::types::Json;
use uuid::Uuid;

use templates::{
    Attached, CompiledMessage, FaultCode, LinkBases, MessageOptions, Named, Sender, TemplateFault, TemplateKind,
    TemplateSource, Written, compile, compile_written,
};

/// How long a compiled message is cached: a change to a sender, a campaign's name or a field's fallback shows in mail after this time.
const CACHE_TIME: Duration = Duration::from_secs(60);
/// The label of the return path's domain.
const RETURN_PATH_LABEL: &str = "send";
/// The placeholder of the host in `tracking-origin`.
pub(super) const HOST: &str = "{host}";

/// What the options of a mail change in its compiled message. Mails of one content and sender have at most eight shapes, and one with
/// attachments has its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct MailShape {
    own_headers: bool,
    no_open_tracking: bool,
    no_click_tracking: bool,
    has_attachments: bool,
}

impl MailShape {
    /// Opens and clicks are those of the recipient: copies are not tracked.
    pub(super) fn of(options: &MailOptions, is_copy: bool) -> Self {
        Self {
            own_headers: options.has_own_headers(),
            no_open_tracking: options.no_open_tracking || is_copy,
            no_click_tracking: options.no_click_tracking || is_copy,
            has_attachments: options.has_attachments,
        }
    }
}

/// The inputs of a compiled message, as a cache key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ContentKey {
    tenant_id: Uuid,
    content_id: Uuid,
    sender_id: Uuid,
    campaign_id: Option<Uuid>,
    classification: Classification,
    shape: MailShape,
}

/// A message that can be rendered.
#[derive(Debug)]
pub(super) struct RenderableMessage {
    pub(super) compiled: CompiledMessage,
    pub(super) skeleton: SkeletonId,
    /// True if the skeleton is stored with what is rendered: no other mail uses it.
    pub(super) owns_skeleton: bool,
    pub(super) sending_domain: String,
    pub(super) return_path_domain: String,
    pub(super) bases: LinkBases,
}

/// A content: ready, or one that does not compile. That one is final for everybody it was meant for.
pub(super) type Content = Option<Arc<RenderableMessage>>;

/// Compiles. A large template takes a while, and a fault of the HTML or template library would panic: neither on the reactor.
async fn compiled(
    key: ContentKey,
    work: impl FnOnce() -> Result<CompiledMessage, Vec<TemplateFault>> + Send + 'static,
) -> Result<Option<CompiledMessage>, StageError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(compiled)) => Ok(Some(compiled)),
        // A machine that stood still says nothing about the content either.
        Ok(Err(faults)) if faults.iter().any(|fault| fault.code == FaultCode::TimedOut) => {
            Err(StageError::Deferred { reason: "compile_timeout" })
        }
        Ok(Err(faults)) => {
            let code = faults.first().map_or("unknown", |fault| fault.code.as_str());
            tracing::warn!(tenant_id = %key.tenant_id, content_id = %key.content_id, code, "content does not compile");
            Ok(None)
        }
        // Cancelled: the process stops. That says nothing about the content.
        Err(error) if !error.is_panic() => Err(StageError::Deferred { reason: "stopping" }),
        Err(_) => {
            tracing::error!(tenant_id = %key.tenant_id, content_id = %key.content_id, "compiling a content panicked");
            Ok(None)
        }
    }
}

/// Where links lead.
#[derive(Debug)]
pub(super) struct LinkOrigins {
    /// The engine's own address, without a slash at its end.
    pub(super) public_url: String,
    /// With [`HOST`] in the place of the sender's own host.
    pub(super) tracking_origin: String,
}

impl LinkOrigins {
    /// The bases of a message. `tracking_domain`: the sender's own, where its tracking host was verified.
    fn bases(&self, tracking_domain: Option<&str>) -> LinkBases {
        let own = tracking_domain.map_or_else(
            || self.public_url.clone(),
            |domain| self.tracking_origin.replace(HOST, &format!("{TRACKING_LABEL}.{domain}")),
        );
        LinkBases { own, public: self.public_url.clone() }
    }
}

/// Compiled contents.
#[derive(Debug)]
pub(super) struct Contents {
    cache: Cache<ContentKey, Content>,
    origins: LinkOrigins,
}

impl Contents {
    pub(super) fn new(cache_mb: u64, origins: LinkOrigins) -> Self {
        let weigh = |_: &ContentKey, content: &Content| {
            let bytes = content.as_ref().map_or(1_024, |ready| ready.compiled.size_bytes());
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        let cache =
            Cache::builder().max_capacity(cache_mb * 1024 * 1024).weigher(weigh).time_to_live(CACHE_TIME).build();
        Self { cache, origins }
    }

    /// The content of a batch's mails of this shape. Its skeleton stands in the ledger when this answers; that of a message its caller
    /// wrote out, or of a mail with attachments, is stored with what was rendered. These two are compiled for this batch: nobody would ask
    /// for them again.
    pub(super) async fn of(
        &self,
        by_key: &PreparedPool,
        batch: &Cleared,
        shape: MailShape,
    ) -> Result<Content, StageError> {
        let &Cleared { tenant_id, content_id, sender_id, campaign_id, classification, .. } = batch;
        let key = ContentKey { tenant_id, content_id, sender_id, campaign_id, classification, shape };
        if batch.kind.is_written() || shape.has_attachments {
            return self.make(by_key, key, batch, Some(skeleton_id(batch, shape))).await;
        }
        if let Some(cached) = self.cache.get(&key).await {
            return Ok(cached);
        }
        let made = self.make(by_key, key, batch, None).await?;
        if let Some(ready) = &made {
            store_skeleton(by_key, key.tenant_id, ready).await?;
        }
        self.cache.insert(key, made.clone()).await;
        Ok(made)
    }

    /// Loads and compiles. A connection is held while a content is loaded, not while it is compiled. `own`: the id of a skeleton that no
    /// other mail uses; the mail is the batch.
    async fn make(
        &self,
        by_key: &PreparedPool,
        key: ContentKey,
        batch: &Cleared,
        own: Option<SkeletonId>,
    ) -> Result<Content, StageError> {
        let (is_written, is_test) = (batch.kind.is_written(), batch.kind == MessageKind::Test);
        let message = is_written.then_some(batch.batch_id);
        let files_of = own.is_some().then_some(batch.batch_id);
        let (source, options) = load(by_key, key, message, files_of, &self.origins).await?;
        // Erased with the contact that it is about: no message is written without a subject.
        if is_written && source.subject.is_empty() && source.body_html.is_empty() && source.body_text.is_none() {
            return Ok(None);
        }
        // Purged: a mail does not leave without its files.
        if key.shape.has_attachments && options.attachments.is_empty() {
            return Ok(None);
        }
        let (sending_domain, bases) = (options.sending_domain.clone(), options.bases.clone());
        let work = move || {
            if !is_written {
                return compile(&source, &options);
            }
            let (subject, html, text) = (source.subject, source.body_html, source.body_text);
            compile_written(&Written { subject, html, text, is_test }, &options)
        };
        let Some(compiled) = compiled(key, work).await? else { return Ok(None) };
        Ok(Some(Arc::new(RenderableMessage {
            owns_skeleton: own.is_some(),
            skeleton: own.unwrap_or_else(|| compiled.skeleton().id()),
            return_path_domain: format!("{RETURN_PATH_LABEL}.{sending_domain}"),
            compiled,
            sending_domain,
            bases,
        })))
    }
}

/// Stores a skeleton that mails share. Kept by this process for a while, so it must not be taken back by a crash of Postgres: nobody would
/// store it again. Where one stands under this id already it is as good: its slots are the same.
async fn store_skeleton(by_key: &PreparedPool, tenant: Uuid, ready: &RenderableMessage) -> Result<(), StageError> {
    let body = serde_json::to_value(ready.compiled.skeleton())?;
    let mut db = by_key.take().await?;
    sqlx::query!(
        "insert into skeletons (tenant_id, id, body) values ($1, $2, $3) on conflict do nothing",
        tenant,
        ready.skeleton.0,
        body
    )
    .execute(&mut *db)
    .await?;
    db.put_back();
    Ok(())
}

/// Where the skeleton of one mail is stored. Only this mail uses it, so it can be purged with its attachments.
fn skeleton_id(batch: &Cleared, shape: MailShape) -> SkeletonId {
    // Copies are not tracked; what its caller wrote out never is.
    let is_untracked = !batch.kind.is_written() && shape.no_open_tracking && shape.no_click_tracking;
    let suffix = if is_untracked { "-untracked" } else { "" };
    SkeletonId(format!("message-{}{suffix}", batch.batch_id.simple()))
}

/// Loads what a content is compiled from.
async fn load(
    by_key: &PreparedPool,
    key: ContentKey,
    message: Option<Uuid>,
    files_of: Option<Uuid>,
    origins: &LinkOrigins,
) -> Result<(TemplateSource, MessageOptions), StageError> {
    let ContentKey { tenant_id, content_id, sender_id, campaign_id, classification, shape } = key;
    let mut db = by_key.take().await?;
    let row =
        sqlx::query_file!("queries/content.sql", tenant_id, content_id, sender_id, campaign_id, message, files_of)
            .fetch_optional(&mut *db)
            .await?;
    db.put_back();
    let row = row.ok_or_else(|| StageError::rejected("unknown_content", format!("content {content_id}")))?;
    if !row.is_known {
        return Err(StageError::rejected("unknown_message", format!("message of content {content_id}")));
    }
    let kind = match row.kind.as_str() {
        "transactional" => TemplateKind::Transactional,
        "sequence" => TemplateKind::Sequence,
        _ => TemplateKind::Marketing,
    };
    let source = TemplateSource {
        subject: row.subject,
        preheader: row.preheader,
        body_html: row.body_html,
        body_text: row.body_text,
        kind,
    };
    let options = MessageOptions {
        tenant: Named { id: tenant_id.to_string(), name: row.tenant_name.unwrap_or_default() },
        campaign: campaign_id.map(|id| Named { id: id.to_string(), name: row.campaign_name.unwrap_or_default() }),
        sender: Sender { name: row.sender_name, email: row.sender_email, reply_to: row.reply_to },
        sending_domain: row.sending_domain,
        physical_address: row.physical_address,
        fallbacks: row.fallbacks.map(|Json(fallbacks)| fallbacks).unwrap_or_default(),
        bases: origins.bases(row.tracking_domain.as_deref()),
        // The test of a campaign has its footer in its body, and unsubscribes nobody.
        opt_out: classification == Classification::Marketing && message.is_none(),
        own_headers: shape.own_headers,
        track_links: !shape.no_click_tracking,
        track_opens: !shape.no_open_tracking,
        attachments: row.attachments.into_iter().map(|Json(attached)| attached).collect(),
    };
    Ok((source, options))
}

#[cfg(test)]
mod tests {
    use super::*;
    use templates::Part;

    #[tokio::test]
    async fn a_content_is_final_unless_reading_it_took_too_long() {
        let id = Uuid::nil();
        let key = ContentKey {
            tenant_id: id,
            content_id: id,
            sender_id: id,
            campaign_id: None,
            classification: Classification::Marketing,
            shape: MailShape::default(),
        };
        let fails = |code| {
            let fault = TemplateFault { part: Part::BodyHtml, line: 1, column: 1, code, detail: String::new() };
            compiled(key, move || Err(vec![fault]))
        };
        assert!(fails(FaultCode::TooComplex).await.unwrap().is_none());
        assert_eq!(fails(FaultCode::TimedOut).await.unwrap_err().code(), "compile_timeout");
    }
}
