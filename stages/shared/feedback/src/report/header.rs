//! The fields of a header, or of the machine-readable part of a report, bounded: names, and values unfolded. One pass over the octets.

use mail_parser::MessageParser;
use runtime::{Budget, Spent};

/// Fields of one header that are kept; real mail has some fifty.
const FIELDS_MAX: usize = 256;
/// Octets of one field that are kept, its continuation lines included.
const VALUE_MAX: usize = 4 * 1024;
/// Groups of a report's part that are read at most; a report to one return path is about one recipient.
const GROUPS_MAX: usize = 32;
/// Parameters of a content type that are looked at.
const PARAMETERS_MAX: usize = 16;
/// Octets of a field that is decoded (RFC 2047): subject, sender.
const DECODED_MAX: usize = 1_024;

/// A header, or a group of fields in a report. Of fields with the same name the first counts.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct MailHeader(Vec<(String, String)>);

impl MailHeader {
    /// Reads a header from `mail[at..]`. Answers it and where the body begins.
    pub(super) fn read(mail: &[u8], at: usize, budget: &Budget) -> Result<(Self, usize), Spent> {
        let mut header = Self::default();
        let mut lines = HeaderLines { data: mail, at };
        loop {
            let start = lines.at;
            let Some(line) = lines.next(budget)? else { return Ok((header, mail.len())) };
            if line.is_empty() {
                return Ok((header, lines.at));
            }
            // A delimiter: the part ends before its header does. No field begins like it.
            if line.starts_with(b"--") {
                return Ok((header, start));
            }
            header.take_line(line, budget)?;
        }
    }

    /// A header of fields that are already taken apart.
    pub(super) fn of(fields: &[(String, String)], budget: &Budget) -> Result<Self, Spent> {
        let mut header = Self::default();
        for (name, value) in fields {
            budget.take_steps((name.len() + value.len()) as u64)?;
            header.add(name.as_bytes(), value.as_bytes(), budget)?;
        }
        Ok(header)
    }

    fn take_line(&mut self, line: &[u8], budget: &Budget) -> Result<(), Spent> {
        if line.first().is_some_and(|first| matches!(first, b' ' | b'\t')) {
            let Some((_, value)) = self.0.last_mut() else { return Ok(()) };
            let room = VALUE_MAX.saturating_sub(value.len());
            if room > 1 {
                let more = text(line.trim_ascii(), room - 1);
                budget.hold(more.len() + 1)?;
                value.push(' ');
                value.push_str(&more);
            }
            return Ok(());
        }
        match line.iter().position(|octet| *octet == b':') {
            Some(colon) => self.add(&line[..colon], &line[colon + 1..], budget),
            None => Ok(()),
        }
    }

    fn add(&mut self, name: &[u8], value: &[u8], budget: &Budget) -> Result<(), Spent> {
        if self.0.len() < FIELDS_MAX {
            let name = text(name.trim_ascii(), VALUE_MAX).to_ascii_lowercase();
            let value = text(value.trim_ascii(), VALUE_MAX);
            budget.hold(name.len() + value.len())?;
            self.0.push((name, value));
        }
        Ok(())
    }

    /// The first field of a name, which is given in lower case.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A field's value without the type before its semicolon (`smtp; 550 …`, `rfc822; a@b`).
    pub(super) fn untyped(&self, name: &str) -> Option<&str> {
        let value = self.get(name)?;
        let plain = |kind: &str| {
            !kind.trim().is_empty() && kind.trim().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        Some(match value.split_once(';') {
            Some((kind, rest)) if plain(kind) => rest.trim(),
            _ => value,
        })
    }

    /// The subject, decoded.
    pub(super) fn subject(&self) -> String {
        self.decoded("subject", |parsed| parsed.subject().map(str::to_owned))
    }

    /// The local part of the sender's address, in lower case.
    pub(super) fn sender_local(&self) -> String {
        let address = self.decoded("from", |parsed| Some(parsed.from()?.first()?.address()?.to_owned()));
        address.split('@').next().unwrap_or_default().to_ascii_lowercase()
    }

    /// The mail's own id, without brackets.
    pub(super) fn message_id(&self) -> Option<String> {
        const ID_CHARS: usize = 255;
        let field = self.get("message-id")?;
        let id = field.split_once('<').map_or(field, |(_, rest)| rest.split('>').next().unwrap_or_default());
        let id: String = id.trim().chars().filter(|c| !c.is_control()).take(ID_CHARS).collect();
        (!id.is_empty()).then_some(id)
    }

    /// Gives one short field to the parser: a header of one line holds nothing that nests or repeats.
    fn decoded(&self, name: &'static str, wanted: impl Fn(&mail_parser::Message<'_>) -> Option<String>) -> String {
        let Some(value) = self.get(name) else { return String::new() };
        let value = cut(value, DECODED_MAX).replace(['\r', '\n'], " ");
        let line = format!("{name}: {value}\r\n\r\n");
        MessageParser::default().parse_headers(line.as_bytes()).and_then(|parsed| wanted(&parsed)).unwrap_or_default()
    }

    pub(super) fn content_type(&self) -> ContentType {
        self.get("content-type").map(ContentType::parse).unwrap_or_default()
    }
}

/// Octets as text, at most so many.
fn text(octets: &[u8], max: usize) -> String {
    let text = String::from_utf8_lossy(&octets[..octets.len().min(max)]);
    cut(&text, max).to_owned()
}

/// The beginning of a text, of at most so many octets.
pub(super) fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// Reads groups of fields, divided by empty lines (RFC 3464 §2.1, RFC 5965 §3).
pub(super) fn groups(text: &str, budget: &Budget) -> Result<Vec<MailHeader>, Spent> {
    let (mut groups, mut group) = (Vec::new(), MailHeader::default());
    let mut lines = HeaderLines { data: text.as_bytes(), at: 0 };
    while let Some(line) = lines.next(budget)? {
        if !line.trim_ascii().is_empty() {
            group.take_line(line, budget)?;
        } else if !group.0.is_empty() && groups.len() + 1 < GROUPS_MAX {
            groups.push(std::mem::take(&mut group));
        }
    }
    groups.push(group);
    groups.retain(|group| !group.0.is_empty());
    Ok(groups)
}

/// What a part is.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct ContentType {
    /// `text/plain`, in lower case; empty where the header does not say.
    pub(super) kind: String,
    /// What divides a multipart.
    pub(super) boundary: Option<String>,
    /// What a text is written in.
    pub(super) charset: Option<String>,
}

impl ContentType {
    fn parse(value: &str) -> Self {
        let (kind, mut rest) = value.split_once(';').unwrap_or((value, ""));
        let mut found = Self { kind: kind.trim().to_ascii_lowercase(), ..Self::default() };
        for _ in 0..PARAMETERS_MAX {
            let Some((name, after)) = rest.split_once('=') else { break };
            let (value, after) = parameter(after);
            rest = after;
            let name = name.rsplit(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            match name.as_str() {
                "charset" => found.charset = Some(value),
                "boundary" => found.boundary = Some(value),
                // RFC 2231: a long value in pieces. They come in order.
                piece if piece.starts_with("boundary*") => {
                    found.boundary.get_or_insert_default().push_str(&value);
                }
                _ => {}
            }
        }
        found.boundary.take_if(|boundary| boundary.is_empty());
        found
    }
}

/// A parameter's value, quoted or not, and what comes after it.
fn parameter(text: &str) -> (String, &str) {
    let text = text.trim_start();
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return (text[..end].trim().to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            character => value.push(character),
        }
    }
    (value, "")
}

/// The lines of some bytes, without their line ends.
pub(super) struct HeaderLines<'a> {
    pub(super) data: &'a [u8],
    /// Where the next line begins.
    pub(super) at: usize,
}

impl<'a> HeaderLines<'a> {
    /// The next line. Charges a step for each of its octets.
    pub(super) fn next(&mut self, budget: &Budget) -> Result<Option<&'a [u8]>, Spent> {
        let rest = self.data.get(self.at..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        let end = rest.iter().position(|octet| *octet == b'\n');
        let length = end.map_or(rest.len(), |end| end + 1);
        budget.take_steps(length as u64)?;
        self.at += length;
        let line = &rest[..end.unwrap_or(rest.len())];
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn header(text: &str) -> MailHeader {
        let budget = Budget::new(super::super::LIMITS);
        MailHeader::read(text.as_bytes(), 0, &budget).unwrap().0
    }

    #[test]
    fn fields_are_unfolded_and_the_first_of_a_name_counts() {
        let header = header(
            "Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n aus Wien\r\nX: 1\r\nx: 2\r\nMessage-ID: <a@b>\r\n\r\nY: 3\r\n",
        );
        assert_eq!((header.get("x"), header.get("y")), (Some("1"), None));
        assert_eq!((header.subject().as_str(), header.message_id().as_deref()), ("Grüße aus Wien", Some("a@b")));
    }

    #[rstest]
    #[case("multipart/Report; report-type=x;\tboundary=\"a;\\\"b\"; x=y", "multipart/report", Some("a;\"b"))]
    #[case("multipart/mixed; boundary=--z ; charset=utf-8", "multipart/mixed", Some("--z"))]
    #[case("multipart/mixed; boundary*0=ab; boundary*1=\"c\"", "multipart/mixed", Some("abc"))]
    #[case("multipart/mixed; odd; boundary=b", "multipart/mixed", Some("b"))]
    #[case("multipart/mixed; boundary=", "multipart/mixed", None)]
    #[case("multipart/mixed; boundary=\"open", "multipart/mixed", Some("open"))]
    #[case("", "", None)]
    fn a_content_type_is_read_with_its_boundary(
        #[case] value: &str,
        #[case] kind: &str,
        #[case] boundary: Option<&str>,
    ) {
        let read = ContentType::parse(value);
        assert_eq!((read.kind.as_str(), read.boundary.as_deref()), (kind, boundary));
    }

    fn report(text: &str) -> Vec<MailHeader> {
        groups(text, &Budget::new(super::super::LIMITS)).unwrap()
    }

    #[test]
    fn fields_are_unfolded_and_groups_divided_by_empty_lines() {
        let groups = report(
            "Reporting-MTA: dns; mx.example\r\n\r\nAction: failed\r\nDiagnostic-Code: smtp; 550\r\n 5.1.1 no\r\n\r\n\r\n",
        );
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[1].untyped("diagnostic-code"), Some("550 5.1.1 no"));
        assert_eq!(groups[1].get("action"), Some("failed"));
    }

    #[test]
    fn a_value_without_a_type_keeps_its_semicolons() {
        let groups = report("Diagnostic-Code: 550 no such user; sorry");
        assert_eq!(groups[0].untyped("diagnostic-code"), Some("550 no such user; sorry"));
    }

    #[test]
    fn a_headers_memory_is_bounded() {
        let endless = format!("A: b\r\n{}", " continued\r\n".repeat(20_000));
        assert!(header(&endless).get("a").unwrap().len() <= VALUE_MAX);
        assert_eq!(header(&"a: b\r\n".repeat(20_000)).0.len(), FIELDS_MAX);
        assert_eq!(header(&format!("A: {}", "é".repeat(20_000))).get("a").unwrap().len(), VALUE_MAX);
    }
}
