//! The stage: loads the data of all batches of a group, renders on a blocking thread, records failures, and passes the rest on.

mod content;
mod cut;
mod one_off;
mod people;
mod renditions;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use runner::{Stage, StageError};
use runtime::{Bus, CommitNotifier, Publication, plans::PreparedPool};
use schemas::{
    Cleared, Lane, Rendered, RenderedRecipient, TokenIds,
    messages::Decided,
    subjects::stream,
    token::{TokenKeyId, TokenKeys},
};
use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use crate::Settings;
use content::{Content, Contents, HOST, LinkOrigins, MailShape, RenderableMessage};
use ledger::render_failures::{self, RenderFailure};
use people::{OwedRecipient, RecipientData};
use renditions::{OwnSkeleton, Rendition};
use templates::{RenderFault, SendLinks};

pub(crate) use one_off::PurgeMessages;

/// Fault code of a content that does not compile.
const CONTENT_INVALID: &str = "render_content_invalid";
/// Fault code of a contact that is gone.
const CONTACT_GONE: &str = "render_contact_gone";
/// Recipients of a group that are rendered a second time after a timeout: the machine may have stood still for a moment. The limit makes
/// sure that a template that is slow for all recipients does not block the worker twice as long.
const SECOND_TRIES: usize = 5;
/// How long mail of one tenant is rendered in a group of the priority lane, not counting [`ORDINARY_TIME`] of each. The others' mail waits
/// for it meanwhile. The batches of the mail that is left are announced again, after as long for each announcement so far.
const TENANT_TIME: Duration = Duration::from_secs(1);
/// More than mail takes whose template is not costly, so that much of it is no reason to leave any.
const ORDINARY_TIME: Duration = Duration::from_millis(2);
/// Announcements after which that pause no longer grows.
const PAUSES_MAX: i32 = 10;
/// How long a look at the stream of rendered mail counts that found space in it.
const SPACE_SEEN_FOR: Duration = Duration::from_millis(250);
/// Until a bulk batch is tried again that found the stream of rendered mail nearly full.
const FULL_WAIT: Duration = Duration::from_secs(2);
/// Until it is announced again, should its message be lost meanwhile.
const FULL_ANNOUNCED_AGAIN: Duration = Duration::from_secs(300);

/// The rendering stage.
#[derive(Debug)]
pub struct Rendering {
    pool: PgPool,
    /// Loads the data of each batch, and stores its renditions. No connection is used while a template is
    /// compiled or rendered: a template is untrusted, and may take as long as its limits allow.
    by_key: PreparedPool,
    tokens: Arc<TokenKeys>,
    contents: Contents,
    bus: Option<Bus>,
    facts: CommitNotifier,
    /// When a worker last found space in the stream of rendered mail.
    space_seen: Mutex<Option<Instant>>,
}

/// The contents of a group: by the batch's index and the shape of the mails.
type BatchContents = HashMap<(usize, MailShape), Content>;

/// The results of rendering a group of sends.
#[derive(Default)]
struct Outcome {
    rendered: Vec<(OwedRecipient, Rendition)>,
    failures: Vec<RenderFailure>,
    /// Skeletons to store with the renditions.
    skeletons: Vec<OwnSkeleton>,
    /// Batches with sends that are left for later, by their index.
    left: BTreeSet<usize>,
}

impl Rendering {
    /// Builds the stage. Refused when the public address is not a web address.
    pub fn new(
        pool: PgPool,
        by_key: PreparedPool,
        tokens: Arc<TokenKeys>,
        settings: &Settings,
    ) -> Result<Self, StageError> {
        let url = &settings.public_url;
        if !matches!(url.scheme(), "http" | "https")
            || url.host().is_none()
            || url.query().is_some()
            || url.fragment().is_some()
        {
            return Err(StageError::rejected(
                "settings",
                "public-url must be http or https, without query or fragment",
            ));
        }
        let origin = settings.tracking_origin.trim_end_matches('/');
        let is_origin = origin.replace(HOST, "link.example.com").parse::<url::Url>().is_ok_and(|url| {
            matches!(url.scheme(), "http" | "https") && url.host_str() == Some("link.example.com") && url.path() == "/"
        });
        if !is_origin {
            return Err(StageError::rejected("settings", "tracking-origin must be like https://{host}"));
        }
        let origins = LinkOrigins {
            public_url: url.as_str().trim_end_matches('/').to_owned(),
            tracking_origin: origin.to_owned(),
        };
        Ok(Self {
            contents: Contents::new(settings.rendering_cache_mb, origins),
            by_key,
            pool,
            tokens,
            bus: None,
            facts: CommitNotifier::default(),
            space_seen: Mutex::new(None),
        })
    }

    /// Also notifies callers that wait for a batch of which no send continues, and notifies about facts.
    pub fn notifying(self, bus: Bus, facts: CommitNotifier) -> Self {
        Self { bus: Some(bus), facts, ..self }
    }

    fn by_key(&self, inputs: &[Cleared]) -> PreparedPool {
        self.by_key.of_lane(lane_of(inputs), Self::NAME)
    }

    /// Bulk mail is not rendered while its stream is nearly full: the stream would refuse a batch whose bodies are merged text as a whole,
    /// which takes many megabytes, and the batch would be rendered again and again. The last quarter is for the priority lane, and for
    /// what other workers are about to publish.
    ///
    /// # Errors
    /// [`StageError::Busy`] then.
    async fn check_capacity(&self, inputs: &[Cleared]) -> Result<(), StageError> {
        let Some(bus) = &self.bus else { return Ok(()) };
        let space_seen = || self.space_seen.lock().unwrap_or_else(PoisonError::into_inner);
        if space_seen().is_some_and(|at| at.elapsed() < SPACE_SEEN_FOR) {
            return Ok(());
        }
        let Some(rendered) = bus.stream(stream::RENDERED).await? else { return Ok(()) };
        let info = rendered.cached_info();
        let is_full = u64::try_from(info.config.max_bytes).is_ok_and(|most| info.state.bytes > most / 4 * 3);
        if !is_full {
            *space_seen() = Some(Instant::now());
            return Ok(());
        }
        // Not announced meanwhile: it would be rendered once for each announcement.
        let batches = inputs.iter().map(|batch| (batch.tenant_id, batch.batch_id));
        ledger::owed::postpone(&self.pool, batches, FULL_ANNOUNCED_AGAIN).await?;
        // The worker waits, or all batches on the bus would ask every two seconds.
        tokio::time::sleep(FULL_WAIT).await;
        Err(StageError::Busy { reason: "stream_full", wait: FULL_WAIT })
    }

    /// The contents of these sends, but for those whose contact is gone: the shape of their mail is not known, and of a one-off message
    /// a second shape would take the place of the first one's skeleton.
    async fn contents(
        &self,
        inputs: &[Cleared],
        sends: &[OwedRecipient],
        people: &[Option<RecipientData>],
    ) -> Result<BatchContents, StageError> {
        let by_key = self.by_key(inputs);
        let mut contents = BatchContents::new();
        for (send, person) in sends.iter().zip(people) {
            let (Some(batch), Some(person)) = (inputs.get(send.input), person) else { continue };
            if let Entry::Vacant(entry) = contents.entry((send.input, person.shape)) {
                entry.insert(self.contents.of(&by_key, batch, person.shape).await?);
            }
        }
        Ok(contents)
    }

    /// Renders sends that were not rendered before. In the priority lane, those of a tenant that has had [`TENANT_TIME`] are left. Uses no
    /// database connection meanwhile.
    async fn render(
        &self,
        inputs: &[Cleared],
        sends: Vec<OwedRecipient>,
        people: Vec<Option<RecipientData>>,
    ) -> Result<Outcome, StageError> {
        if sends.is_empty() {
            return Ok(Outcome::default());
        }
        let contents = self.contents(inputs, &sends, &people).await?;
        let skeletons = one_off::skeletons(inputs, &contents)?;
        let tokens = self.tokens.clone();
        let with_head = |(key, content): ((usize, MailShape), Content)| {
            let (batch, content) = (inputs.get(key.0)?, content?);
            Some((key, (Arc::new(head(batch, &content, tokens.newest())), content)))
        };
        let contents: HashMap<_, _> = contents.into_iter().filter_map(with_head).collect();
        // In the bulk lane a group is one batch, and dispatch lets the tenants take turns.
        let is_limited = lane_of(inputs) == Lane::Priority;
        // Templates are untrusted: up to 200 ms each, and none of it on the reactor.
        let work = move || {
            let mut outcome = Outcome { skeletons, ..Outcome::default() };
            let mut second_tries = SECOND_TRIES;
            let mut times: HashMap<Uuid, Duration> = HashMap::new();
            for (send, person) in sends.into_iter().zip(people) {
                let content = person.as_ref().and_then(|person| contents.get(&(send.input, person.shape)));
                let (time, started) = (times.entry(send.tenant_id).or_default(), Instant::now());
                let rendered = match (content, person) {
                    (_, None) => Err(CONTACT_GONE),
                    (None, Some(_)) => Err(CONTENT_INVALID),
                    // Never the first mail of a tenant: each group brings it further.
                    (Some(_), Some(_)) if is_limited && *time >= TENANT_TIME => {
                        outcome.left.insert(send.input);
                        continue;
                    }
                    (Some((head, content)), Some(mut person)) => {
                        let ids =
                            TokenIds { tenant_id: send.tenant_id, send_id: send.send_id, contact_id: send.contact_id };
                        let links = SendLinks { tokens: &tokens, bases: &content.bases, ids };
                        if person.asks_to_confirm {
                            person.data.data["confirmation_url"] = json!(links.confirmation());
                        }
                        render_one(content, &person, &links, &mut second_tries)
                            .map(|recipient| Rendition { head: head.clone(), recipient })
                    }
                };
                *time += started.elapsed().saturating_sub(ORDINARY_TIME);
                match rendered {
                    Ok(rendition) => outcome.rendered.push((send, rendition)),
                    Err(code) => {
                        let OwedRecipient { input, send_id, contact_id, .. } = send;
                        outcome.failures.push(RenderFailure { input, send_id, contact_id, code });
                    }
                }
            }
            // Mail that is left is compiled anew later.
            let Outcome { skeletons, rendered, .. } = &mut outcome;
            skeletons.retain(|own| {
                rendered.iter().any(|(send, of)| send.tenant_id == own.tenant_id && of.head.skeleton == own.id)
            });
            outcome
        };
        tokio::task::spawn_blocking(work).await.map_err(|error| {
            if error.is_panic() {
                StageError::rejected("panicked", "rendering panicked")
            } else {
                StageError::Deferred { reason: "stopping" }
            }
        })
    }
}

/// The lane of a group: its messages are of one.
fn lane_of(inputs: &[Cleared]) -> Lane {
    inputs.first().map_or(Lane::Bulk, |batch| batch.lane)
}

/// What the mails of a batch have in common.
fn head(batch: &Cleared, content: &RenderableMessage, token_key: TokenKeyId) -> Rendered {
    Rendered {
        tenant_id: batch.tenant_id,
        batch_id: batch.batch_id,
        campaign_id: batch.campaign_id,
        kind: batch.kind,
        lane: batch.lane,
        part: 0,
        skeleton: content.skeleton.clone(),
        token_key,
        sending_domain: content.sending_domain.clone(),
        return_path_domain: content.return_path_domain.clone(),
        recipients: Vec::new(),
        notify: None,
    }
}

fn render_one(
    content: &RenderableMessage,
    person: &RecipientData,
    links: &SendLinks<'_>,
    second_tries: &mut usize,
) -> Result<RenderedRecipient, &'static str> {
    let slots = match content.compiled.render(&person.data, links) {
        // The time limit is wall time: a second try, so that a machine that stood still for a moment costs no recipient the message.
        Err(RenderFault::DeadlineExceeded) if *second_tries > 0 => {
            *second_tries -= 1;
            content.compiled.render(&person.data, links)
        }
        rendered => rendered,
    }
    .map_err(RenderFault::code)?;
    let ids = &links.ids;
    Ok(RenderedRecipient::new(ids.send_id.ordinal(), ids.contact_id, &person.address, &slots))
}

#[async_trait]
impl Stage for Rendering {
    const NAME: &'static str = "rendering";
    const SPAN: &'static str = "rendering render";
    type Input = Cleared;

    async fn handle(&self, inputs: &[Cleared]) -> Result<Vec<Publication>, StageError> {
        if lane_of(inputs) == Lane::Bulk {
            self.check_capacity(inputs).await?;
        }
        let (kept, bulk): (Vec<_>, Vec<_>) = people::owed(inputs).into_iter().partition(|send| send.is_kept);
        // At the first announcement nothing is stored. Of two workers that have it, the second one finds the other's rendition when it
        // stores its own.
        let may_be_stored = |send: &&OwedRecipient| inputs.get(send.input).is_some_and(|batch| batch.announcement > 1);
        let again: Vec<OwedRecipient> = kept.iter().filter(may_be_stored).copied().collect();
        let mut db = self.by_key(inputs).take().await?;
        let mut stored =
            if again.is_empty() { HashMap::new() } else { renditions::load_stored(&mut db, &again).await? };
        let mut all: Vec<(OwedRecipient, Rendition)> = Vec::with_capacity(kept.len() + bulk.len());
        let mut fresh = bulk;
        for send in kept {
            match stored.remove(&send.send_id.0) {
                Some(rendition) => all.push((send, rendition)),
                None => fresh.push(send),
            }
        }
        let people = people::load_merge_data(&mut db, &fresh).await?;
        db.put_back();
        let outcome = self.render(inputs, fresh, people).await?;
        let (mut to_keep, bulk): (Vec<_>, Vec<_>) = outcome.rendered.into_iter().partition(|(send, _)| send.is_kept);
        if !to_keep.is_empty() {
            let mut db = self.by_key(inputs).take().await?;
            renditions::keep(&mut db, &mut to_keep, outcome.skeletons).await?;
            db.put_back();
        }
        if !outcome.failures.is_empty() {
            render_failures::record(&self.pool, inputs, &outcome.failures).await?;
            self.facts.notify();
        }
        self.announce_later(inputs, &outcome.left).await?;
        all.extend(to_keep);
        all.extend(bulk);
        self.notify_waiting(inputs, &all, &outcome.left).await;
        self.publications(inputs, all)
    }

    async fn given_up(&self, input: &Cleared, _: &'static str) -> Result<Vec<Publication>, StageError> {
        ledger::owed::set_aside(&self.by_key(std::slice::from_ref(input)), input.tenant_id, input.batch_id).await?;
        Ok(Vec::new())
    }

    fn commits_facts(&self, _: &[Self::Input]) -> bool {
        false
    }
}

impl Rendering {
    /// Has the batches announced again of which sends are left. The mail of others that waits is rendered first. The pause grows, so that
    /// many such batches do not fill the lane.
    async fn announce_later(&self, inputs: &[Cleared], left: &BTreeSet<usize>) -> Result<(), StageError> {
        let mut pauses: BTreeMap<Duration, Vec<(Uuid, Uuid)>> = BTreeMap::new();
        for batch in left.iter().filter_map(|number| inputs.get(*number)) {
            let announcements = batch.announcement.clamp(1, PAUSES_MAX).unsigned_abs();
            pauses.entry(TENANT_TIME * announcements).or_default().push((batch.tenant_id, batch.batch_id));
            tracing::info!(
                tenant_id = %batch.tenant_id, batch_id = %batch.batch_id, announcements,
                "templates take long: the rest of the batch is rendered later"
            );
        }
        for (pause, batches) in pauses {
            ledger::owed::postpone(&self.pool, batches, pause).await?;
        }
        Ok(())
    }

    /// Notifies callers that wait for a batch of which no send could be rendered.
    async fn notify_waiting(
        &self,
        inputs: &[Cleared],
        rendered: &[(OwedRecipient, Rendition)],
        left: &BTreeSet<usize>,
    ) {
        let Some(bus) = &self.bus else { return };
        for (number, batch) in inputs.iter().enumerate() {
            if let Some(notify) = &batch.notify
                && !left.contains(&number)
                && !rendered.iter().any(|(send, _)| send.input == number)
            {
                bus.publish_reply(notify, &Decided { tenant_id: batch.tenant_id, batch_id: batch.batch_id }).await;
            }
        }
    }

    fn publications(
        &self,
        inputs: &[Cleared],
        rendered: Vec<(OwedRecipient, Rendition)>,
    ) -> Result<Vec<Publication>, StageError> {
        let mut by_input: Vec<Vec<Rendition>> = inputs.iter().map(|_| Vec::new()).collect();
        for (send, rendition) in rendered {
            if let Some(renditions) = by_input.get_mut(send.input) {
                renditions.push(rendition);
            }
        }
        let mut publications = Vec::new();
        for (batch, mut renditions) in inputs.iter().zip(by_input) {
            // In a fixed order, so that a repeat makes the same messages.
            renditions.sort_by_key(|rendition| rendition.recipient.ordinal);
            publications.extend(cut::publications(batch, renditions)?);
        }
        Ok(publications)
    }
}
