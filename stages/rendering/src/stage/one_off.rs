//! One-off messages: what is theirs beside the content, and how long it is kept.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep};
use schemas::{Cleared, MessageKind, SkeletonId};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::{
    content::Content,
    people::{Owed, index},
    renditions::OwnSkeleton,
};
use templates::MergeData;

/// Where a message's skeleton is stored. It is used by this message alone, so that it can be forgotten with it.
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

/// The recipients' names as the caller gave them. The contact's own name says nothing here.
pub(super) async fn fill_names(
    db: &mut PgConnection,
    inputs: &[Cleared],
    sends: &[Owed],
    people: &mut [Option<MergeData>],
) -> Result<(), StageError> {
    let is_one_off = |send: &Owed| inputs.get(send.input).is_some_and(|batch| batch.kind == MessageKind::OneOff);
    let wanted: Vec<(usize, &Owed)> = sends.iter().enumerate().filter(|(_, send)| is_one_off(send)).collect();
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

/// Deletes attachments and compiled forms of messages nobody can need any more: a message is decided within a day or two, and
/// this is well past it.
pub(crate) struct ForgetMessages {
    pool: PgPool,
}

impl ForgetMessages {
    pub(crate) fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

/// Messages one run forgets at most: some hundred megabytes of attachments.
const FORGET_AT_ONCE: i64 = 100;

#[async_trait]
impl Sweep for ForgetMessages {
    fn name(&self) -> &'static str {
        "messages"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(600)
    }

    fn rests(&self) -> bool {
        false
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let forgotten =
            sqlx::query_file_scalar!("queries/forget_messages.sql", FORGET_AT_ONCE).fetch_one(&self.pool).await?;
        Ok(u64::try_from(forgotten).unwrap_or(0))
    }
}
