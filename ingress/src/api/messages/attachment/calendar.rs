//! Calendar invites: iCalendar (RFC 5545) with a scheduling method (RFC 5546), for mail as RFC 6047 has it.
//!
//! Only what mail programs need to show the invite is checked: its structure, its method, and who organises what. Line ends and folding
//! are made anew, so that a caller need not care for them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{ValidAttachment, lines};
use crate::pipeline::Faults;

/// Longest calendar, in bytes.
pub(crate) const CALENDAR_MAX_BYTES: usize = 128 * 1024;
/// Octets of a line before its CRLF (RFC 5545 §3.1).
const LINE_OCTETS: usize = 75;
/// The file that the invite is attached as.
const FILENAME: &str = "invite.ics";

schemas::named_enum! {
    /// What the recipient's calendar does with an invite.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
    pub(crate) wire enum CalendarMethod {
        /// Invites, or changes an invitation.
        Request = "REQUEST",
        /// Takes an invitation back.
        Cancel = "CANCEL",
        /// Answers an invitation.
        Reply = "REPLY",
    }
}

impl CalendarMethod {
    fn media_type(self) -> &'static str {
        match self {
            Self::Request => "text/calendar; method=REQUEST; charset=utf-8",
            Self::Cancel => "text/calendar; method=CANCEL; charset=utf-8",
            Self::Reply => "text/calendar; method=REPLY; charset=utf-8",
        }
    }
}

/// A calendar invite as the caller gives it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CalendarInvite {
    #[schemars(with = "CalendarMethod")]
    method: Option<CalendarMethod>,
    /// iCalendar: one event, with the same METHOD, and with UID, DTSTAMP and ORGANIZER.
    #[schemars(with = "String", length(min = 1, max = CALENDAR_MAX_BYTES))]
    content: Option<String>,
}

/// What is wrong with a calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum CalendarFault {
    #[error(
        "must begin with BEGIN:VCALENDAR and end with END:VCALENDAR, with each component closed where it was opened"
    )]
    Structure,
    #[error("has a line that is not a property: a name, a colon, a value without control characters")]
    Line,
    #[error("must have VERSION:2.0 and PRODID once each")]
    Header,
    #[error("must have METHOD once, the same as method")]
    Method,
    #[error("must have at least one VEVENT, and all with the same UID")]
    Event,
    #[error("each VEVENT must have UID and DTSTAMP once each, and DTSTART in a REQUEST")]
    EventProperty,
    #[error("each VEVENT must have one ORGANIZER with a mailto: address")]
    Organizer,
    #[error("a REQUEST must have an ATTENDEE, a REPLY exactly one")]
    Attendee,
}

/// The invite as an attachment, or a fault that names the field.
pub(crate) fn check(faults: &mut Faults, invite: CalendarInvite) -> Option<ValidAttachment> {
    let method = faults.required("calendar.method", invite.method);
    let content = faults.required("calendar.content", invite.content)?;
    if content.len() > CALENDAR_MAX_BYTES {
        faults.add("calendar.content", "too_long", format!("may have at most {CALENDAR_MAX_BYTES} bytes"));
        return None;
    }
    let method = method?;
    match written_anew(&content, method) {
        Ok(content) => Some(ValidAttachment {
            filename: FILENAME.to_owned(),
            media_type: method.media_type(),
            content_id: None,
            encoded: lines(&STANDARD.encode(content)),
        }),
        Err(fault) => {
            faults.add("calendar.content", "invalid", fault.to_string());
            None
        }
    }
}

/// The calendar with CRLF at the end of each line, and no line longer than it may be.
fn written_anew(content: &str, method: CalendarMethod) -> Result<String, CalendarFault> {
    let unfolded = unfold(content);
    check_calendar(&unfolded, method)?;
    let mut written = String::with_capacity(content.len() + content.len() / LINE_OCTETS * 3 + 2);
    for line in &unfolded {
        fold(line, &mut written);
    }
    Ok(written)
}

/// The content lines without their folds and ends.
fn unfold(content: &str) -> Vec<String> {
    let mut unfolded: Vec<String> = Vec::new();
    for line in content.trim_end().lines() {
        match (line.strip_prefix([' ', '\t']), unfolded.last_mut()) {
            (Some(rest), Some(before)) => before.push_str(rest),
            _ => unfolded.push(line.to_owned()),
        }
    }
    unfolded
}

fn fold(line: &str, written: &mut String) {
    let mut column = 0;
    for c in line.chars() {
        if column + c.len_utf8() > LINE_OCTETS {
            written.push_str("\r\n ");
            column = 1;
        }
        written.push(c);
        column += c.len_utf8();
    }
    written.push_str("\r\n");
}

/// A content line: the name of the property in capitals, and its value.
fn property(line: &str) -> Result<(String, &str), CalendarFault> {
    let end = line.find([':', ';']).ok_or(CalendarFault::Line)?;
    let (name, rest) = line.split_at(end);
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if !is_name || line.chars().any(|c| c.is_control() && c != '\t') {
        return Err(CalendarFault::Line);
    }
    // A colon in quotes belongs to a parameter.
    let mut quoted = false;
    let colon = rest.find(|c: char| {
        quoted ^= c == '"';
        c == ':' && !quoted
    });
    let value = colon.and_then(|colon| rest.get(colon + 1..)).ok_or(CalendarFault::Line)?;
    Ok((name.to_ascii_uppercase(), value))
}

/// The properties of a component, without those of components in it.
type CalendarProperties<'a> = Vec<(String, &'a str)>;

fn values<'a>(properties: &CalendarProperties<'a>, name: &str) -> Vec<&'a str> {
    properties.iter().filter(|(known, _)| known == name).map(|(_, value)| *value).collect()
}

fn check_calendar(lines: &[String], method: CalendarMethod) -> Result<(), CalendarFault> {
    let mut open: Vec<String> = Vec::new();
    let (mut header, mut events) = (CalendarProperties::new(), Vec::<CalendarProperties<'_>>::new());
    for (place, line) in lines.iter().enumerate() {
        let (name, value) = property(line)?;
        match name.as_str() {
            // Nothing stands before or after the calendar.
            "BEGIN" if open.is_empty() != (place == 0) => return Err(CalendarFault::Structure),
            "BEGIN" => {
                open.push(value.to_ascii_uppercase());
                if open == ["VCALENDAR", "VEVENT"] {
                    events.push(Vec::new());
                }
            }
            "END" if open.pop() != Some(value.to_ascii_uppercase()) => return Err(CalendarFault::Structure),
            "END" => {}
            _ if open.first().is_none_or(|first| first != "VCALENDAR") => return Err(CalendarFault::Structure),
            _ if open.len() == 1 => header.push((name, value)),
            _ => {
                if let (true, Some(event)) = (open == ["VCALENDAR", "VEVENT"], events.last_mut()) {
                    event.push((name, value));
                }
            }
        }
    }
    if lines.is_empty() || !open.is_empty() {
        return Err(CalendarFault::Structure);
    }
    if values(&header, "VERSION") != ["2.0"] || values(&header, "PRODID").len() != 1 {
        return Err(CalendarFault::Header);
    }
    if !matches!(values(&header, "METHOD")[..], [said] if said.eq_ignore_ascii_case(method.as_str())) {
        return Err(CalendarFault::Method);
    }
    let uid = values(events.first().ok_or(CalendarFault::Event)?, "UID");
    if events.iter().any(|event| values(event, "UID") != uid) {
        return Err(CalendarFault::Event);
    }
    events.iter().try_for_each(|event| check_event(event, method))
}

fn check_event(event: &CalendarProperties<'_>, method: CalendarMethod) -> Result<(), CalendarFault> {
    let count = |name| values(event, name).len();
    let starts = count("DTSTART") == 1 || method != CalendarMethod::Request && count("DTSTART") == 0;
    let has_uid = matches!(values(event, "UID")[..], [uid] if !uid.is_empty());
    if !has_uid || count("DTSTAMP") != 1 || !starts {
        return Err(CalendarFault::EventProperty);
    }
    let is_address = |value: &str| value.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("mailto:"));
    if !matches!(values(event, "ORGANIZER")[..], [organizer] if is_address(organizer)) {
        return Err(CalendarFault::Organizer);
    }
    match (method, count("ATTENDEE")) {
        (CalendarMethod::Request, 0) => Err(CalendarFault::Attendee),
        (CalendarMethod::Reply, attendees) if attendees != 1 => Err(CalendarFault::Attendee),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    const INVITE: &str = "BEGIN:VCALENDAR\nVERSION:2.0\nPRODID:-//Acme//Meet//EN\nMETHOD:REQUEST\nBEGIN:VEVENT\nUID:1@acme.test\n\
        DTSTAMP:20260301T090000Z\nDTSTART:20260302T090000Z\nSUMMARY:Review\nORGANIZER;CN=\"Ann: chair\":mailto:ann@acme.test\n\
        ATTENDEE;RSVP=TRUE:mailto:bob@example.com\nBEGIN:VALARM\nUID:2\nEND:VALARM\nEND:VEVENT\nEND:VCALENDAR\n";

    #[rstest]
    #[case::good("", "", Ok(()))]
    #[case::lower_case("BEGIN:VEVENT", "begin:vevent", Ok(()))]
    #[case::another_zone("BEGIN:VEVENT", "BEGIN:VTIMEZONE\nTZID:X\nEND:VTIMEZONE\nBEGIN:VEVENT", Ok(()))]
    #[case::text_before("BEGIN:VCALENDAR", "X:1\nBEGIN:VCALENDAR", Err(CalendarFault::Structure))]
    #[case::text_after("END:VCALENDAR\n", "END:VCALENDAR\nX:1", Err(CalendarFault::Structure))]
    #[case::second_calendar(
        "END:VCALENDAR\n",
        "END:VCALENDAR\nBEGIN:VCALENDAR\nEND:VCALENDAR",
        Err(CalendarFault::Structure)
    )]
    #[case::crossed("END:VALARM\nEND:VEVENT", "END:VEVENT\nEND:VALARM", Err(CalendarFault::Structure))]
    #[case::open("END:VCALENDAR\n", "", Err(CalendarFault::Structure))]
    #[case::no_property("SUMMARY:Review", "Review", Err(CalendarFault::Line))]
    #[case::header_line("SUMMARY:Review", "SUMMARY:a\u{0}b", Err(CalendarFault::Line))]
    #[case::version("VERSION:2.0", "VERSION:1.0", Err(CalendarFault::Header))]
    #[case::maker("PRODID:-//Acme//Meet//EN\n", "", Err(CalendarFault::Header))]
    #[case::no_method("METHOD:REQUEST\n", "", Err(CalendarFault::Method))]
    #[case::other_method("METHOD:REQUEST", "METHOD:CANCEL", Err(CalendarFault::Method))]
    #[case::two_methods("METHOD:REQUEST", "METHOD:REQUEST\nMETHOD:REQUEST", Err(CalendarFault::Method))]
    #[case::no_event("VEVENT", "VTODO", Err(CalendarFault::Event))]
    #[case::two_events("END:VCALENDAR\n", "BEGIN:VEVENT\nUID:9\nEND:VEVENT\nEND:VCALENDAR", Err(CalendarFault::Event))]
    #[case::no_uid("UID:1@acme.test\n", "", Err(CalendarFault::EventProperty))]
    #[case::no_stamp("DTSTAMP:20260301T090000Z\n", "", Err(CalendarFault::EventProperty))]
    #[case::no_start("DTSTART:20260302T090000Z\n", "", Err(CalendarFault::EventProperty))]
    #[case::no_organizer("ORGANIZER", "X-ORGANIZER", Err(CalendarFault::Organizer))]
    #[case::organizer_without_mail("mailto:ann@acme.test", "https://acme.test", Err(CalendarFault::Organizer))]
    #[case::nobody_invited("ATTENDEE", "X-ATTENDEE", Err(CalendarFault::Attendee))]
    fn a_calendar_is_what_its_method_says(
        #[case] part: &str,
        #[case] instead: &str,
        #[case] expected: Result<(), CalendarFault>,
    ) {
        // Every line "VEVENT" is changed, so that components stay balanced.
        let content = if part.is_empty() { INVITE.to_owned() } else { INVITE.replace(part, instead) };
        assert_eq!(written_anew(&content, CalendarMethod::Request).map(drop), expected);
    }

    #[test]
    fn a_reply_has_one_attendee_and_a_cancellation_needs_none() {
        let with = |method: &str| INVITE.replace("METHOD:REQUEST", &format!("METHOD:{method}"));
        let two = |text: String| text.replace("BEGIN:VALARM", "ATTENDEE:mailto:eve@example.com\nBEGIN:VALARM");
        assert!(written_anew(&with("REPLY"), CalendarMethod::Reply).is_ok());
        assert_eq!(written_anew(&two(with("REPLY")), CalendarMethod::Reply), Err(CalendarFault::Attendee));
        let none = with("CANCEL").replace("ATTENDEE", "X-A").replace("DTSTART", "X-B");
        assert!(written_anew(&none, CalendarMethod::Cancel).is_ok());
    }

    proptest! {
        #[test]
        fn lines_are_folded_and_say_what_they_said(summary in "[^\\p{Cc}]{0,300}") {
            let content = INVITE.replace("Review", &summary);
            let written = written_anew(&content, CalendarMethod::Request).unwrap();
            prop_assert!(written.ends_with("END:VCALENDAR\r\n"));
            prop_assert!(written.split("\r\n").all(|line| line.len() <= LINE_OCTETS && !line.contains(['\r', '\n'])));
            prop_assert_eq!(unfold(&written), unfold(&content));
        }
    }
}
