use proptest::prelude::*;

use super::{
    skeleton::{QP_LINE, push_token},
    *,
};
use crate::{
    SendId,
    token::{Purpose, TokenKeys},
};

fn tokens() -> TokenKeys {
    TokenKeys::derive(&[[7; 32]])
}

fn rendered(recipients: Vec<RenderedRecipient>) -> Rendered {
    Rendered {
        tenant_id: Uuid::from_u128(1),
        batch_id: crate::new_batch_id(),
        campaign_id: None,
        kind: MessageKind::Campaign,
        lane: Lane::Bulk,
        part: 0,
        skeleton: SkeletonId("s".to_owned()),
        token_key: tokens().newest(),
        sending_domain: "acme.example".to_owned(),
        return_path_domain: "send.acme.example".to_owned(),
        recipients,
        notify: None,
    }
}

fn recipient(slots: &[&str]) -> RenderedRecipient {
    let slots: Vec<String> = slots.iter().map(|slot| (*slot).to_owned()).collect();
    RenderedRecipient::new(3, Uuid::from_u128(9), "ann@example.com", &slots)
}

fn spliced(pieces: Vec<Piece>, slots: &[&str], attachments: &[Vec<u8>]) -> Option<Vec<u8>> {
    let count = pieces.iter().filter(|piece| matches!(piece, Piece::Slot(_))).count();
    let skeleton = Skeleton { pieces, slots: u16::try_from(count).unwrap() };
    let message = rendered(vec![recipient(slots)]);
    skeleton.splice(&message.values(&message.recipients[0]), &tokens(), attachments)
}

#[test]
fn attachments_are_spliced_in_their_place_and_none_may_be_missing_or_changed() {
    let pieces = || {
        vec![
            Piece::Text("a".into()),
            Piece::Attachment { place: 1, bytes: 2 },
            Piece::Slot(0),
            Piece::Attachment { place: 0, bytes: 1 },
        ]
    };
    assert_eq!(spliced(pieces(), &["-"], &[b"x".to_vec(), b"yz".to_vec()]).unwrap(), b"ayz-x");
    assert_eq!(Skeleton { pieces: pieces(), slots: 1 }.attachment_bytes(), 3);
    assert_eq!(spliced(pieces(), &["-"], &[]), None);
    assert_eq!(spliced(pieces(), &["-"], &[b"x".to_vec(), b"y".to_vec()]), None);
    assert_eq!(spliced(pieces(), &["-", "-"], &[b"x".to_vec(), b"yz".to_vec()]), None);
}

#[test]
fn what_follows_from_the_send_is_computed_for_it() {
    let message = rendered(vec![recipient(&[])]);
    let pieces = vec![
        Piece::MessageId,
        Piece::Text(" ".into()),
        Piece::SendId,
        Piece::Text(" ".into()),
        Piece::Date,
        Piece::Text(" ".into()),
        Piece::Token { token: LinkToken::Click { link: 2, url: "https://x.test".into() }, column: None },
        Piece::Text(" ".into()),
        Piece::Token { token: LinkToken::Unsubscribe, column: None },
    ];
    let values = message.values(&message.recipients[0]);
    let skeleton = Skeleton { pieces, slots: 0 };
    let text = String::from_utf8(skeleton.splice(&values, &tokens(), &[]).unwrap()).unwrap();
    let send = SendId::of(message.batch_id, 3);
    let (named, rest) = text.split_once(' ').unwrap();
    assert_eq!(tokens().identified_send(named), Some(send.0));
    let (id, rest) = rest.split_once(' ').unwrap();
    assert_eq!(id, send.0.to_string());
    let words: Vec<&str> = rest.rsplitn(3, ' ').collect();
    let date = chrono::DateTime::parse_from_rfc2822(words[2]).unwrap();
    assert_eq!(date.timestamp(), send.made_at().timestamp());
    let click = tokens().open(Purpose::Click, words[1]).unwrap();
    assert_eq!(
        (click.tenant_id, click.send_id, click.click()),
        (Uuid::from_u128(1), send.0, Some((2, "https://x.test")))
    );
    let leave = tokens().open(Purpose::Unsubscribe, words[0]).unwrap();
    assert_eq!((leave.send_id, leave.contact()), (send.0, Some(Uuid::from_u128(9))));
    let later = send.made_at() + chrono::TimeDelta::hours(9);
    for (due_at, dated) in [(later, later), (send.made_at() - chrono::TimeDelta::hours(1), send.made_at())] {
        let waited = PlaceholderValues { due_at: Some(due_at), ..values.clone() };
        let only = Skeleton { pieces: vec![Piece::Date], slots: 0 };
        let text = String::from_utf8(only.splice(&waited, &tokens(), &[]).unwrap()).unwrap();
        assert_eq!(chrono::DateTime::parse_from_rfc2822(&text).unwrap().timestamp(), dated.timestamp());
    }
    // No allocation is made a second time.
    assert!(text.len() <= skeleton.static_bytes(), "{} {}", text.len(), skeleton.static_bytes());
}

#[test]
fn a_frame_is_read_as_it_was_written() {
    let long = "x".repeat(70_000);
    let message = rendered(vec![recipient(&["Ann", "", &long]), recipient(&[])]);
    let frame = message.frame().unwrap();
    let read = Rendered::of_frame(&frame).unwrap();
    assert_eq!(read, message);
    assert_eq!(read.recipients[0].address(), "ann@example.com");
    assert_eq!(read.recipients[0].slots(), [b"Ann".as_slice(), b"", long.as_bytes()]);
    assert_eq!(read.recipients[1].slots(), Vec::<&[u8]>::new());
}

#[test]
fn a_frame_that_is_cut_off_or_too_long_is_refused() {
    let frame = rendered(vec![recipient(&["Ann", "x"])]).frame().unwrap();
    for length in 0..frame.len() {
        assert!(Rendered::of_frame(&frame.slice(..length)).is_err(), "{length}");
    }
    assert!(Rendered::of_frame(&[&frame[..], b"\0"].concat().into()).is_err());
}

/// A token in quoted-printable text, a byte at a time.
fn quoted(token: &str, mut column: usize) -> String {
    let mut out = String::new();
    for letter in token.chars() {
        let encoded = letter == '.' && (column == 0 || column == QP_LINE);
        let width = if encoded { 3 } else { 1 };
        if column + width > QP_LINE {
            out.push_str("=\r\n");
            column = 0;
        }
        if encoded {
            out.push_str("=2E")
        } else {
            out.push(letter)
        }
        column += width;
    }
    if column > 0 { out + "=\r\n" } else { out }
}

proptest! {
    #[test]
    fn a_token_is_quoted_as_any_text_is(token in "[A-Za-z0-9._-]{0,400}", column in 0..=75_u8) {
        let mut out = Vec::new();
        push_token(&token, Some(column), &mut out);
        prop_assert_eq!(String::from_utf8(out).unwrap(), quoted(&token, usize::from(column)));
    }

    #[test]
    fn a_changed_frame_is_read_or_refused(at in 0..2_000_usize, with in any::<u8>()) {
        let frame = rendered(vec![recipient(&["Ann", "x"]), recipient(&["y"])]).frame().unwrap();
        let mut frame = frame.to_vec();
        let at = at % frame.len();
        frame[at] = with;
        if let Ok(read) = Rendered::of_frame(&frame.into()) {
            for recipient in &read.recipients {
                let _ = (recipient.address(), recipient.slots());
            }
        }
    }
}
