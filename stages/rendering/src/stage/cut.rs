//! Packs rendered recipients into messages the bus takes: one skeleton each, at most [`RENDERED_MAX_BYTES`].

use runner::StageError;
use runtime::Publication;
use schemas::rendered::RENDERED_MAX_BYTES;
use schemas::{Cleared, Rendered, RenderedRecipient, subjects};

use super::renditions::Rendition;

/// Bytes reserved for everything in a message but its recipients.
const FRAME_BYTES: usize = 1024;

/// The messages of one batch. The same renditions in the same order give the same messages with the same ids.
pub(super) fn publications(batch: &Cleared, renditions: Vec<Rendition>) -> Result<Vec<Publication>, StageError> {
    let mut messages: Vec<Rendered> = Vec::new();
    let mut bytes = 0;
    for rendition in renditions {
        let size = json_bytes(&rendition.recipient);
        let is_full = bytes + size > RENDERED_MAX_BYTES;
        match messages.last_mut() {
            Some(message) if !is_full && is_same(message, &rendition) => message.recipients.push(rendition.recipient),
            _ => {
                bytes = FRAME_BYTES;
                messages.push(first(batch, messages.len(), rendition));
            }
        }
        bytes += size;
    }
    messages.iter().map(|message| publication(batch, message)).collect()
}

fn is_same(message: &Rendered, rendition: &Rendition) -> bool {
    message.skeleton == rendition.skeleton
        && message.sending_domain == rendition.sending_domain
        && message.return_path_domain == rendition.return_path_domain
}

fn first(batch: &Cleared, part: usize, rendition: Rendition) -> Rendered {
    Rendered {
        tenant_id: batch.tenant_id,
        batch_id: batch.batch_id,
        campaign_id: batch.campaign_id,
        kind: batch.kind,
        lane: batch.lane,
        // A batch has at most 512 recipients, so at most as many parts.
        part: u16::try_from(part).unwrap_or(u16::MAX),
        skeleton: rendition.skeleton,
        sending_domain: rendition.sending_domain,
        return_path_domain: rendition.return_path_domain,
        recipients: vec![rendition.recipient],
        notify: batch.notify.clone(),
    }
}

fn publication(batch: &Cleared, message: &Rendered) -> Result<Publication, StageError> {
    let id = format!("rendered-{}-{}-{}", batch.batch_id.simple(), batch.announcement, message.part);
    Ok(Publication::json(subjects::rendered(batch.lane), id, message)?)
}

/// How many bytes a recipient takes in JSON, counted without writing it.
fn json_bytes(recipient: &RenderedRecipient) -> usize {
    // {"ordinal":65535,"address":…,"slots":[…]},
    let frame = 48;
    let slots: usize = recipient.slots.iter().map(|slot| json_text_bytes(slot) + 1).sum();
    frame + json_text_bytes(&recipient.address) + slots
}

fn json_text_bytes(text: &str) -> usize {
    let escaped: usize = text
        .bytes()
        .map(|byte| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 1,
            0..=0x1f => 5,
            _ => 0,
        })
        .sum();
    2 + text.len() + escaped
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use schemas::{Classification, Lane, MessageKind, SkeletonId, new_batch_id};
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
        Rendition {
            skeleton: SkeletonId(skeleton.to_owned()),
            sending_domain: "example.com".to_owned(),
            return_path_domain: "send.example.com".to_owned(),
            recipient: RenderedRecipient {
                ordinal,
                address: format!("a{ordinal}@example.org"),
                slots: vec!["=\r\n\"\\\t".repeat(bytes / 6), String::new()],
            },
        }
    }

    fn decoded(publications: &[Publication]) -> Vec<Rendered> {
        publications.iter().map(|publication| serde_json::from_slice(&publication.body).unwrap()).collect()
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

    #[test]
    fn the_counted_size_is_never_less_than_the_written_one() {
        let recipient = rendition(511, "s", 600).recipient;
        let written = serde_json::to_vec(&recipient).unwrap().len();
        let counted = json_bytes(&recipient);
        assert!(counted >= written && counted < written + 32, "{counted} {written}");
    }
}
