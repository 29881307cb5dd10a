//! Packs rendered recipients into messages the bus takes: one skeleton each, at most [`RENDERED_MAX_BYTES`].

use runner::StageError;
use runtime::Publication;
use schemas::rendered::RENDERED_MAX_BYTES;
use schemas::{Cleared, Rendered, subjects};

use super::renditions::Rendition;

/// Bytes reserved for everything in a message but its recipients: mostly two domains, the hash of the skeleton and three ids.
const HEAD_BYTES: usize = 2048;

/// The messages of one batch. The same renditions in the same order give the same messages with the same ids.
pub(super) fn publications(batch: &Cleared, renditions: Vec<Rendition>) -> Result<Vec<Publication>, StageError> {
    let mut messages: Vec<Rendered> = Vec::new();
    let mut bytes = 0;
    for rendition in renditions {
        let size = rendition.recipient.frame_bytes();
        let is_full = bytes + size > RENDERED_MAX_BYTES;
        match messages.last_mut() {
            Some(message) if !is_full && is_same(message, &rendition) => message.recipients.push(rendition.recipient),
            _ => {
                bytes = HEAD_BYTES;
                messages.push(first(batch, messages.len(), rendition));
            }
        }
        bytes += size;
    }
    let publication = |message: &Rendered| {
        let id = format!("rendered-{}-{}-{}", batch.batch_id.simple(), batch.announcement, message.part);
        Publication::json(subjects::rendered(batch.lane), id, message).map_err(StageError::from)
    };
    messages.iter().map(publication).collect()
}

fn is_same(message: &Rendered, rendition: &Rendition) -> bool {
    let head = &rendition.head;
    message.skeleton == head.skeleton
        && message.token_key == head.token_key
        && message.sending_domain == head.sending_domain
        && message.return_path_domain == head.return_path_domain
}

fn first(batch: &Cleared, part: usize, rendition: Rendition) -> Rendered {
    Rendered {
        lane: batch.lane,
        // A batch has at most 512 recipients, so at most as many parts.
        part: u16::try_from(part).unwrap_or(u16::MAX),
        recipients: vec![rendition.recipient],
        notify: batch.notify.clone(),
        ..Rendered::clone(&rendition.head)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use schemas::{Classification, Lane, MessageKind, RenderedRecipient, SkeletonId, new_batch_id, token::TokenKeyId};
    use uuid::Uuid;

    use super::*;

    fn batch() -> Cleared {
        Cleared {
            tenant_id: Uuid::from_u128(1),
            batch_id: new_batch_id(),
            lane: Lane::Bulk,
            announcement: 2,
            kind: MessageKind::Campaign,
            classification: Classification::Marketing,
            campaign_id: None,
            content_id: Uuid::from_u128(2),
            sender_id: Uuid::from_u128(3),
            recipients: Vec::new(),
            notify: None,
        }
    }

    fn rendition(ordinal: u16, skeleton: &str, bytes: usize) -> Rendition {
        let batch = batch();
        let head = Rendered {
            tenant_id: batch.tenant_id,
            batch_id: batch.batch_id,
            campaign_id: None,
            kind: batch.kind,
            lane: batch.lane,
            part: 0,
            skeleton: SkeletonId(skeleton.to_owned()),
            token_key: TokenKeyId::default(),
            sending_domain: "example.com".to_owned(),
            return_path_domain: "send.example.com".to_owned(),
            recipients: Vec::new(),
            notify: None,
        };
        let slots = ["=\r\n\"\\\t".repeat(bytes / 6), String::new()];
        let address = format!("a{ordinal}@example.org");
        let recipient = RenderedRecipient::new(ordinal, Uuid::from_u128(4), &address, &slots);
        Rendition { head: Arc::new(head), recipient }
    }

    fn decoded(publications: &[Publication]) -> Vec<Rendered> {
        publications.iter().map(|publication| Rendered::of_frame(&publication.body).unwrap()).collect()
    }

    #[test]
    fn a_batch_is_cut_into_messages_within_the_limit_and_loses_nobody() {
        let batch = batch();
        let renditions: Vec<Rendition> = (0..500).map(|ordinal| rendition(ordinal, "s", 1_500)).collect();
        let publications = publications(&batch, renditions).unwrap();
        assert!(publications.len() > 2);
        assert!(publications.iter().all(|publication| publication.body.len() <= RENDERED_MAX_BYTES));
        // Full, not merely within the limit: at most one recipient's bytes are wasted.
        let fill = publications.iter().rev().skip(1).map(|publication| publication.body.len()).min().unwrap();
        assert!(fill > RENDERED_MAX_BYTES - 4_096, "{fill}");
        let messages = decoded(&publications);
        let ordinals: Vec<u16> =
            messages.iter().flat_map(|message| &message.recipients).map(|recipient| recipient.ordinal).collect();
        assert_eq!(ordinals, (0..500).collect::<Vec<u16>>());
        assert_eq!(
            messages.iter().map(|message| message.part).collect::<Vec<_>>(),
            (0..messages.len() as u16).collect::<Vec<_>>()
        );
    }

    #[test]
    fn message_ids_differ_by_announcement_and_part() {
        let batch = batch();
        let publications = publications(&batch, vec![rendition(0, "s", 9), rendition(1, "t", 9)]).unwrap();
        let ids: Vec<&str> = publications.iter().map(|publication| publication.message_id.as_str()).collect();
        let stem = batch.batch_id.simple();
        assert_eq!(ids, [format!("rendered-{stem}-2-0"), format!("rendered-{stem}-2-1")]);
    }

    #[test]
    fn one_recipient_over_the_limit_travels_alone() {
        let renditions = vec![rendition(0, "s", 90), rendition(1, "s", RENDERED_MAX_BYTES), rendition(2, "s", 90)];
        let messages = decoded(&publications(&batch(), renditions).unwrap());
        assert_eq!(messages.iter().map(|message| message.recipients.len()).collect::<Vec<_>>(), [1, 1, 1]);
    }
}
