//! One-off messages: their skeletons, recipient names and attachments, and when these are purged.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep};
use schemas::{Cleared, MessageKind, SkeletonId};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::{
    content::Content,
    people::{OwedRecipient, index},
    renditions::OwnSkeleton,
};
use templates::MergeData;

/// Where a message's skeleton is stored. Only this message uses it, so it can be purged with the message.
pub(super) fn skeleton_id(message: Uuid) -> SkeletonId {
    SkeletonId(format!("message-{}", message.simple()))
}

/// The skeletons of the messages among these batches.
pub(super) fn skeletons(inputs: &[Cleared], contents: &[Content]) -> Result<Vec<OwnSkeleton>, StageError> {
    let mut skeletons = Vec::new();
    for (batch, content) in inputs.iter().zip(contents) {
        if let (MessageKind::OneOff, Some(ready)) = (batch.kind, content) {
            let body = serde_json::to_value(ready.compiled.skeleton())?;
            skeletons.push(OwnSkeleton { tenant_id: batch.tenant_id, id: ready.skeleton.clone(), body });
        }
    }
    Ok(skeletons)
}

/// Sets the recipients' names as the caller gave them. The contact's stored name is not used.
pub(super) async fn fill_names(
    db: &mut PgConnection,
    inputs: &[Cleared],
    sends: &[OwedRecipient],
    people: &mut [Option<MergeData>],
) -> Result<(), StageError> {
    let is_one_off =
        |send: &OwedRecipient| inputs.get(send.input).is_some_and(|batch| batch.kind == MessageKind::OneOff);
    let wanted: Vec<(usize, &OwedRecipient)> = sends.iter().enumerate().filter(|(_, send)| is_one_off(send)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    for (at, _) in &wanted {
        if let Some(Some(person)) = people.get_mut(*at) {
            (person.contact.first_name, person.contact.last_name) = (None, None);
        }
    }
    let tenants: Vec<Uuid> = wanted.iter().map(|(_, send)| send.tenant_id).collect();
    let ids: Vec<Uuid> = wanted.iter().map(|(_, send)| send.send_id.0).collect();
    let rows = sqlx::query!(
        r#"select w.place as "place!", r.name as "name!"
           from unnest($1::uuid[], $2::uuid[]) with ordinality as w (tenant_id, send_id, place)
           join message_recipients r on r.tenant_id = w.tenant_id and r.send_id = w.send_id
           where r.name is not null"#,
        &tenants,
        &ids
    )
    .fetch_all(db)
    .await?;
    for row in rows {
        let at = index(row.place).and_then(|place| wanted.get(place)).map(|(at, _)| *at);
        if let Some(Some(person)) = at.and_then(|at| people.get_mut(at)) {
            person.contact.first_name = Some(row.name);
        }
    }
    Ok(())
}

/// Deletes the attachments and skeletons of old messages: a message has its outcome within two days, and this is well past that.
pub(crate) struct PurgeMessages {
    pool: PgPool,
}

impl PurgeMessages {
    pub(crate) fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

/// Most messages purged in one run: some hundred megabytes of attachments.
const PURGE_AT_ONCE: i64 = 100;

#[async_trait]
impl Sweep for PurgeMessages {
    fn name(&self) -> &'static str {
        "purge_messages"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(600)
    }

    fn stops_when_paused(&self) -> bool {
        false
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let purged =
            sqlx::query_file_scalar!("queries/purge_messages.sql", PURGE_AT_ONCE).fetch_one(&self.pool).await?;
        Ok(u64::try_from(purged).unwrap_or(0))
    }
}
