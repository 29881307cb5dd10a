//! A whole message: compiled into a skeleton and the programs of its slots; rendered slot by slot.

use std::panic::{AssertUnwindSafe, catch_unwind};

use runtime::{Budget, Limits};
use schemas::{LinkToken, Piece, Skeleton};
use sha2::{Digest, Sha256};

use super::attachment::multipart;
use super::engine::{Engine, LINK_STEPS};
use super::fault::{FaultCode, Part, Position, Problem, RenderFault, TemplateFault};
use super::limits::{READING, RENDERING, SUBJECT_BYTES, text_steps};
use super::links::{LinkBases, click_token};
use super::merge::{Links, MergeData, OwnHeaders};
use super::options::{MessageOptions, Sender};
use super::parts::{Prepared, PreparedMessage, Scanned, prepare};
use super::program::{Builder, Context, Instruction, own_page};
use super::scan::{Item, ItemKind, Shown, Special};
use super::segment::{PartSegment, segments};
use super::sheet::RootStyles;
use super::{TemplateSource, escape, header, qp};

/// What fills one slot.
#[derive(Debug)]
enum Program {
    From,
    Own,
    To,
    Subject(Vec<Instruction>),
    Body(Part, Vec<Instruction>),
}

/// A template compiled for one sender and campaign. Immutable; made once, used for every recipient, from any thread.
#[derive(Debug)]
pub struct CompiledMessage {
    skeleton: Skeleton,
    programs: Vec<Program>,
    options: MessageOptions,
    /// The styles of the template that values printed as HTML are checked with.
    styles: Option<RootStyles>,
    /// What the tokens of the skeleton take of the budget of a rendering: steps and bytes.
    tokens: (u64, usize),
}

/// Compiles a template into a message.
///
/// # Errors
/// The faults of the template, as [`super::check`] reports them. Names are not checked again: a field that was deleted since
/// the template was saved prints as nothing.
pub fn compile(source: &TemplateSource, options: &MessageOptions) -> Result<CompiledMessage, Vec<TemplateFault>> {
    let budget = Budget::new(READING);
    let PreparedMessage { subject, text, html, styles } = prepare(Scanned::of(source, &budget)?, options, &budget)?;
    let mut draft = Draft::default();
    draft.headers_to_subject(options);
    draft.subject(&subject).map_err(|fault| vec![fault])?;
    draft.headers_after_subject(options);
    let hash = boundary(&source.subject, &source.body_html, source.body_text.as_deref());
    multipart(&mut draft, options, &hash, text, html).map_err(|fault| vec![fault])?;
    Ok(draft.finish(options, styles))
}

/// Part of a boundary: 24 hex digits, the same for the same texts.
pub(super) fn boundary(subject: &str, html: &str, text: Option<&str>) -> String {
    let mut hash = Sha256::new();
    for part in [subject, html, text.unwrap_or(subject)] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let hash = hex::encode(hash.finalize());
    hash.get(..24).unwrap_or(&hash).to_owned()
}

impl CompiledMessage {
    /// The skeleton the slots belong to.
    #[must_use]
    pub fn skeleton(&self) -> &Skeleton {
        &self.skeleton
    }

    /// Roughly how much memory it takes, in bytes: for caches.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        // Programs keep the static text inside blocks; an estimate of a kilobyte each covers ordinary ones.
        self.skeleton.memory_bytes() + self.programs.len() * 1024 + 4096
    }

    /// One recipient's slot values, in slot order, encoded for where they stand.
    ///
    /// # Errors
    /// The recipient's own fault; it will be the same next time.
    pub fn render(&self, data: &MergeData, links: &dyn Links) -> Result<Vec<String>, RenderFault> {
        // A panic in the template library must cost one recipient, not the batch.
        catch_unwind(AssertUnwindSafe(|| self.slots(&mut self.engine(data, links, RENDERING), data)))
            .unwrap_or(Err(RenderFault::Engine))
    }

    /// A rendering within other limits, and what it takes.
    #[cfg(test)]
    pub(super) fn render_within(
        &self,
        limits: Limits,
        data: &MergeData,
        links: &dyn Links,
    ) -> (Result<Vec<String>, RenderFault>, runtime::Used) {
        let mut engine = self.engine(data, links, limits);
        let slots = self.slots(&mut engine, data);
        (slots, engine.used())
    }

    fn engine<'a>(&'a self, data: &'a MergeData, links: &'a dyn Links, limits: Limits) -> Engine<'a> {
        Engine::new(&self.options, self.styles.as_ref(), data, links, Budget::new(limits))
    }

    fn slots(&self, engine: &mut Engine<'_>, data: &MergeData) -> Result<Vec<String>, RenderFault> {
        let (steps, bytes) = self.tokens;
        engine.scope.budget.take_steps(steps)?;
        engine.scope.budget.hold(bytes)?;
        let mut slots = Vec::with_capacity(self.programs.len());
        let mut written = String::new();
        let mut current = Part::Subject;
        for program in &self.programs {
            written.clear();
            let slot = match program {
                Program::From => from(&self.options.sender, &data.headers),
                Program::Own => own_headers(&self.options.sender, &data.headers),
                Program::To => to(data),
                Program::Subject(ops) => {
                    engine.render(ops, &mut written)?;
                    check_subject(&written)?;
                    header::subject(&written)
                }
                Program::Body(part, ops) => {
                    if *part != current {
                        engine.next_part();
                        current = *part;
                    }
                    engine.render(ops, &mut written)?;
                    qp::slot(&escape::body(&written))
                }
            };
            slots.push(slot);
        }
        Ok(slots)
    }
}

fn from(sender: &Sender, own: &OwnHeaders) -> String {
    header::mailbox(own.from_name.as_ref().unwrap_or(&sender.name), &sender.email)
}

/// The fields between From and To, each with its CRLF.
fn own_headers(sender: &Sender, own: &OwnHeaders) -> String {
    let reply_to = own.reply_to.as_ref().or(sender.reply_to.as_ref());
    let reply_to = reply_to.map(|address| format!("Reply-To: {}\r\n", header::mailbox("", address)));
    let cc = (!own.cc.is_empty()).then(|| format!("Cc: {}\r\n", header::mailboxes(&own.cc)));
    let custom = own.custom.iter().map(|(name, value)| header::field(name, value));
    reply_to.into_iter().chain(cc).chain(custom).collect()
}

fn to(data: &MergeData) -> String {
    if let Some(name) = &data.headers.to_name {
        return header::mailbox(name, &data.contact.email);
    }
    let first = data.contact.first_name.as_deref().unwrap_or_default();
    let last = data.contact.last_name.as_deref().unwrap_or_default();
    header::mailbox(&format!("{first} {last}"), &data.contact.email)
}

fn check_subject(subject: &str) -> Result<(), RenderFault> {
    if subject.len() > SUBJECT_BYTES { Err(RenderFault::SubjectTooLong) } else { Ok(()) }
}

/// A skeleton in the making.
#[derive(Default)]
pub(super) struct Draft {
    pieces: Vec<Piece>,
    programs: Vec<Program>,
}

impl Draft {
    /// The message, when everything is in it.
    pub(super) fn finish(self, options: &MessageOptions, styles: Option<RootStyles>) -> CompiledMessage {
        let slots = self.slots();
        let tokens = self.pieces.iter().filter_map(|piece| match piece {
            Piece::Token { token, .. } => Some(token.size()),
            _ => None,
        });
        let tokens = tokens.fold((0, 0), |(steps, bytes), size| (steps + LINK_STEPS + text_steps(size), bytes + size));
        CompiledMessage {
            skeleton: Skeleton { pieces: self.pieces, slots },
            programs: self.programs,
            options: options.clone(),
            styles,
            tokens,
        }
    }

    /// How many slots there are: far fewer than a u16 counts, since nearly each needs a tag of the template.
    fn slots(&self) -> u16 {
        u16::try_from(self.programs.len()).unwrap_or(u16::MAX)
    }

    /// A stored attachment goes here.
    pub(super) fn attachment(&mut self, place: u16, bytes: u32) {
        self.pieces.push(Piece::Attachment { place, bytes });
    }

    pub(super) fn text(&mut self, text: &str) {
        match self.pieces.last_mut() {
            Some(Piece::Text(before)) => before.push_str(text),
            _ if text.is_empty() => {}
            _ => self.pieces.push(Piece::Text(text.to_owned())),
        }
    }

    fn slot(&mut self, program: Program) {
        let slot = self.slots();
        self.pieces.push(Piece::Slot(slot));
        self.programs.push(program);
    }

    /// Everything up to the text of the subject.
    pub(super) fn headers_to_subject(&mut self, options: &MessageOptions) {
        let domain = escape::url(&options.sending_domain);
        self.text("Message-ID: <");
        self.pieces.push(Piece::MessageId);
        self.text(&format!("@{domain}>\r\nX-Postrider-Send: "));
        self.pieces.push(Piece::SendId);
        self.text("\r\nDate: ");
        self.pieces.push(Piece::Date);
        self.text("\r\nFrom: ");
        if options.own_headers {
            self.slot(Program::From);
            self.text("\r\n");
            self.slot(Program::Own);
        } else {
            let none = OwnHeaders::default();
            self.text(&format!("{}\r\n{}", from(&options.sender, &none), own_headers(&options.sender, &none)));
        }
        self.text("To: ");
        self.slot(Program::To);
        self.text("\r\nSubject: ");
    }

    fn subject(&mut self, subject: &Prepared) -> Result<(), TemplateFault> {
        let ops = build(subject)?;
        // Outside of all blocks, each recipient gets it.
        let fixed = ops.iter().map(|op| if let Instruction::Text(text) = op { text.len() } else { 0 });
        if fixed.sum::<usize>() > SUBJECT_BYTES {
            let detail = format!("the text of the subject is longer than {SUBJECT_BYTES} bytes");
            return Err(Problem::new(FaultCode::TooLong, detail).at(Part::Subject, Position::START));
        }
        match ops.as_slice() {
            [] => {}
            [Instruction::Text(text)] => self.text(&header::subject(text)),
            _ => self.slot(Program::Subject(ops)),
        }
        Ok(())
    }

    /// What follows the text of the subject, up to the MIME headers: RFC 2919 and RFC 8058 headers, and the id by which Gmail's
    /// postmaster tools group complaints.
    pub(super) fn headers_after_subject(&mut self, options: &MessageOptions) {
        self.text("\r\n");
        let domain = escape::url(&options.sending_domain);
        let tenant = escape::url(&options.tenant.id);
        let campaign =
            options.campaign.as_ref().map_or_else(|| "none".to_owned(), |campaign| escape::url(&campaign.id));
        if options.opt_out {
            let before = escape::url(&options.bases.public);
            self.text(&format!("List-Unsubscribe:\r\n <{before}/u/"));
            self.pieces.push(Piece::Token { token: LinkToken::Unsubscribe, column: None });
            self.text(&format!(
                ">\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\nList-Id: <{tenant}.{domain}>\r\n"
            ));
        }
        let class = if options.opt_out { "marketing" } else { "transactional" };
        self.text(&format!("Feedback-ID: {campaign}:{tenant}:{class}:postrider\r\n"));
    }

    pub(super) fn body(&mut self, part: Part, prepared: Prepared, bases: &LinkBases) -> Result<(), TemplateFault> {
        let media_type = if part == Part::BodyHtml { "text/html" } else { "text/plain" };
        self.text(&format!(
            "Content-Type: {media_type}; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
        ));
        let Prepared { part: source, context, items, locals } = prepared;
        let builder = Builder { part: source, context, locals: &locals };
        let mut encoder = qp::Encoder::default();
        // A footer that depends on what was shown has to see it printed.
        let is_watched = items
            .iter()
            .any(|item| matches!(item.kind, ItemKind::Special(Special::UnlessShown { field: Shown::Unsubscribe, .. })));
        let address = |item: &Item| match &item.kind {
            ItemKind::Special(Special::Click { link, url }) => click_token(*link, url),
            ItemKind::Special(Special::OpenPixel) => Some(LinkToken::Open),
            ItemKind::Special(Special::Unsubscribe) => Some(LinkToken::Unsubscribe),
            _ if is_watched => None,
            // No template can give these names another value.
            _ => item.output().and_then(own_page),
        };
        for segment in segments(items, address) {
            match segment {
                PartSegment::Text(text) => encoder.text(&escape::body(&text)),
                PartSegment::Address(token) => {
                    let before = bases.before(&token);
                    let before = if context == Context::Html { escape::to_html(&before) } else { before };
                    encoder.soft_break();
                    encoder.text(&escape::body(&before));
                    let (text, column) = encoder.take_before_token();
                    self.text(&text);
                    self.pieces.push(Piece::Token { token, column: Some(column) });
                }
                PartSegment::Slot(items) => {
                    encoder.soft_break();
                    self.text(&encoder.take());
                    self.slot(Program::Body(part, builder.build(&items)?));
                }
            }
        }
        self.text(&encoder.take());
        Ok(())
    }
}

fn build(prepared: &Prepared) -> Result<Vec<Instruction>, TemplateFault> {
    Builder { part: prepared.part, context: prepared.context, locals: &prepared.locals }.build(&prepared.items)
}

/// A message as a person would see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessagePreview {
    /// The subject, decoded.
    pub subject: String,
    /// The HTML part.
    pub html: String,
    /// The text part, with `\n` line ends.
    pub text: String,
}

/// Why there is no preview.
#[derive(Debug, thiserror::Error)]
pub enum PreviewFault {
    /// The template has faults.
    #[error("the template has faults")]
    Template(Vec<TemplateFault>),
    /// The data cannot be rendered.
    #[error(transparent)]
    Render(#[from] RenderFault),
}

/// Renders a message for a person to look at, without encoding it. What [`CompiledMessage::render`] sends decodes to the same.
///
/// # Errors
/// The template's faults, or this data's.
pub fn preview(
    source: &TemplateSource,
    options: &MessageOptions,
    data: &MergeData,
    links: &dyn Links,
) -> Result<MessagePreview, PreviewFault> {
    let budget = Budget::new(READING);
    let message = Scanned::of(source, &budget)
        .and_then(|scanned| prepare(scanned, options, &budget))
        .map_err(PreviewFault::Template)?;
    let PreparedMessage { subject, text, html, styles } = message;
    let whole = |part: Prepared| build(&part).map_err(|fault| PreviewFault::Template(vec![fault]));
    let parts = [whole(subject)?, whole(text)?, whole(html)?];
    let rendered = catch_unwind(AssertUnwindSafe(|| {
        let mut engine = Engine::new(options, styles.as_ref(), data, links, Budget::new(RENDERING));
        let mut rendered = [String::new(), String::new(), String::new()];
        for (ops, out) in parts.iter().zip(&mut rendered) {
            engine.render(ops, out)?;
            engine.next_part();
        }
        Ok::<_, RenderFault>(rendered)
    }))
    .unwrap_or(Err(RenderFault::Engine))?;
    let [subject, text, html] = rendered;
    check_subject(&subject)?;
    let lines = |body: &str| escape::body(body).replace("\r\n", "\n");
    Ok(MessagePreview { subject: escape::header(&subject), html: lines(&html), text: lines(&text) })
}
