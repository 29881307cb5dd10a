//! What the pages say, a file per language. `{from}` is who sends, `{address}` the recipient's address, half hidden.

mod de;
mod en;
mod es;
mod fr;

/// All texts of one language.
#[derive(Debug)]
pub(super) struct Texts {
    /// The language, as `lang` names it.
    pub(super) lang: &'static str,
    /// Who sends, where nobody knows.
    pub(super) sender: &'static str,
    pub(super) unsubscribe: Unsubscribe,
    pub(super) preferences: Preferences,
    pub(super) no_link: Message,
    /// An opt-out that could not be stored.
    pub(super) not_left: Message,
    /// A choice that could not be stored.
    pub(super) not_stored: Message,
}

/// A page with a title and one thing to say.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) title: &'static str,
    pub(super) text: &'static str,
}

/// The unsubscribe page.
#[derive(Debug)]
pub(super) struct Unsubscribe {
    pub(super) title: &'static str,
    pub(super) question: &'static str,
    pub(super) button: &'static str,
    /// Leads to the preferences page.
    pub(super) rather: &'static str,
    pub(super) done: Message,
    /// Leads to the preferences page, afterwards.
    pub(super) changed_mind: &'static str,
}

/// The preferences page.
#[derive(Debug)]
pub(super) struct Preferences {
    pub(super) title: &'static str,
    pub(super) about: &'static str,
    pub(super) topics: &'static str,
    pub(super) choose: &'static str,
    pub(super) no_topics: &'static str,
    pub(super) save: &'static str,
    pub(super) saved: &'static str,
    pub(super) everything: &'static str,
    pub(super) leave_about: &'static str,
    pub(super) leave: &'static str,
    pub(super) has_left: &'static str,
    pub(super) return_about: &'static str,
    pub(super) come_back: &'static str,
    pub(super) is_back: &'static str,
    /// Something holds that the recipient cannot lift.
    pub(super) held: &'static str,
    pub(super) not_understood: &'static str,
}

/// Every language, the first where nothing else is wanted.
pub(super) const ALL: [&Texts; 4] = [&en::TEXTS, &de::TEXTS, &fr::TEXTS, &es::TEXTS];
