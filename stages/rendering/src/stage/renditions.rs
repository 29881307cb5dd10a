//! Renditions: the rendered parts of a priority send are kept until it is decided, so that a second attempt has the same bytes even if
//! template, sender or contact have changed.

use std::{collections::HashMap, sync::Arc};

use runner::StageError;
use runtime::column;
use schemas::{Rendered, RenderedRecipient, SkeletonId};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::people::OwedRecipient;

/// One send as it was rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rendition {
    /// Everything but its recipients: shared by those that were rendered together.
    pub(super) head: Arc<Rendered>,
    pub(super) recipient: RenderedRecipient,
}

impl Rendition {
    /// As it is stored: the frame of a message to this recipient alone.
    fn frame(&self) -> Result<Vec<u8>, serde_json::Error> {
        let message = Rendered { recipients: vec![self.recipient.clone()], ..Rendered::clone(&self.head) };
        Ok(message.frame()?.into())
    }

    fn of_frame(frame: Vec<u8>) -> Result<Option<Self>, serde_json::Error> {
        let mut head = Rendered::of_frame(&frame.into())?;
        let recipient = head.recipients.pop();
        Ok(recipient.map(|recipient| Self { head: Arc::new(head), recipient }))
    }
}

/// The stored renditions of these sends, by send.
pub(super) async fn load_stored(
    db: &mut PgConnection,
    sends: &[OwedRecipient],
) -> Result<HashMap<Uuid, Rendition>, StageError> {
    let (tenants, ids) = keys(sends.iter());
    let rows = sqlx::query!(
        "select r.send_id, r.rendered
         from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, send_id)
         join renditions r on r.tenant_id = w.tenant_id and r.send_id = w.send_id",
        &tenants,
        &ids
    )
    .fetch_all(db)
    .await?;
    let mut stored = HashMap::with_capacity(rows.len());
    for row in rows {
        stored.extend(Rendition::of_frame(row.rendered)?.map(|rendition| (row.send_id, rendition)));
    }
    Ok(stored)
}

/// A skeleton that is used by one message alone.
#[derive(Debug)]
pub(super) struct OwnSkeleton {
    pub(super) tenant_id: Uuid,
    pub(super) id: SkeletonId,
    pub(super) body: Value,
    pub(super) message_id: Uuid,
    /// What the caller wrote; `None`: it is the message's own for its attachments.
    pub(super) content_id: Option<Uuid>,
}

/// Stores new renditions, with the skeletons that only they use. If another worker was first, its rendition replaces the new one. What was
/// erased meanwhile is left out: when its batch comes again, nothing is left to render.
///
/// After a crash of Postgres, lost renditions are made again. Skeletons must not be lost: delivery may already refer to them.
pub(super) async fn keep(
    db: &mut PgConnection,
    rendered: &mut Vec<(OwedRecipient, Rendition)>,
    skeletons: Vec<OwnSkeleton>,
) -> Result<(), StageError> {
    let (tenants, ids) = keys(rendered.iter().map(|(send, _)| send));
    let bodies = rendered.iter().map(|(_, rendition)| rendition.frame()).collect::<Result<Vec<_>, _>>()?;
    let waits_for_disk = if skeletons.is_empty() { "off" } else { "on" };
    let own = column(rendered.iter(), |(send, rendition)| {
        let id = &rendition.head.skeleton;
        skeletons.iter().any(|own| own.tenant_id == send.tenant_id && own.id == *id).then(|| id.0.clone())
    });
    let (owners, messages) = (column(&skeletons, |own| own.tenant_id), column(&skeletons, |own| own.message_id));
    let (names, contents) = (column(&skeletons, |own| own.id.0.clone()), column(&skeletons, |own| own.content_id));
    let texts = column(skeletons, |own| own.body);
    let stored = sqlx::query_file!(
        "queries/keep.sql",
        &tenants,
        &ids,
        &bodies,
        &own as &[Option<String>],
        waits_for_disk,
        &owners,
        &names,
        &texts,
        &messages,
        &contents as &[Option<Uuid>],
    )
    .execute(&mut *db)
    .await?;
    if stored.rows_affected() == rendered.len() as u64 {
        return Ok(());
    }
    let sends: Vec<OwedRecipient> = rendered.iter().map(|(send, _)| *send).collect();
    let mut first = load_stored(db, &sends).await?;
    let stands = |(send, rendition): &mut (OwedRecipient, Rendition)| {
        let theirs = first.remove(&send.send_id.0);
        theirs.map(|theirs| *rendition = theirs).is_some()
    };
    rendered.retain_mut(stands);
    Ok(())
}

fn keys<'a>(sends: impl Iterator<Item = &'a OwedRecipient>) -> (Vec<Uuid>, Vec<Uuid>) {
    sends.map(|send| (send.tenant_id, send.send_id.0)).unzip()
}
