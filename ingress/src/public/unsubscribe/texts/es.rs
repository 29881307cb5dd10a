//! Spanish.

use super::{Confirmation, PageText, PageTexts, Preferences, Unsubscribe};

pub(super) const TEXTS: PageTexts = PageTexts {
    lang: "es",
    sender: "este remitente",
    unsubscribe: Unsubscribe {
        title: "Darse de baja",
        question: "¿Quiere dejar de recibir correos publicitarios de {from}? La baja tiene efecto inmediato.",
        button: "Darse de baja",
        rather: "Prefiero elegir temas",
        done: PageText {
            title: "Se ha dado de baja",
            text: "Ya no recibirá correos publicitarios de {from}. Aún podrán llegarle mensajes sobre sus pedidos o su cuenta.",
        },
        changed_mind: "¿Ha cambiado de opinión? Sus preferencias de correo",
    },
    preferences: Preferences {
        title: "Preferencias de correo",
        about: "Qué puede enviar {from} a {address}.",
        topics: "Temas",
        choose: "Marque lo que desea recibir.",
        no_topics: "No hay temas para elegir.",
        more_topics: "Esta página muestra 100 temas como máximo. Escriba al remitente sobre los demás o dese de baja de todo más abajo.",
        save: "Guardar preferencias",
        saved: "Sus preferencias se han guardado.",
        everything: "Todos los correos publicitarios",
        leave_about: "No recibir más correos publicitarios, sea cual sea el tema. Aún podrán llegarle mensajes sobre sus pedidos o su cuenta.",
        leave: "Darse de baja de todo",
        has_left: "No recibe correos publicitarios de {from}.",
        return_about: "¿Desea volver a recibirlos? Su consentimiento se registra al pulsar el botón.",
        come_back: "Suscribirse de nuevo",
        is_back: "Vuelve a estar suscrito.",
        held: "Por el momento {from} no puede enviarle correos publicitarios, por un motivo que no se puede cambiar aquí. Póngase en contacto con el remitente.",
        not_understood: "Había un error en el formulario. No se ha cambiado nada; inténtelo de nuevo.",
    },
    confirmation: Confirmation {
        title: "Confirmar su suscripción",
        question: "¿Desea recibir correos publicitarios de {from} en {address}? Puede darse de baja en cualquier momento.",
        button: "Sí, suscribirme",
        done: PageText {
            title: "Está suscrito",
            text: "A partir de ahora recibirá correos publicitarios de {from}. Todos incluyen un enlace para darse de baja.",
        },
        closed: PageText {
            title: "Este enlace ya no es válido",
            text: "Ha caducado, o la dirección ya no recibe correos publicitarios de {from}. Si todavía desea recibirlos, vuelva a suscribirse.",
        },
    },
    no_link: PageText {
        title: "Este enlace no funciona",
        text: "Puede que sea demasiado antiguo o que un programa de correo lo haya cortado. Ábralo de nuevo desde el propio mensaje.",
    },
    not_left: PageText {
        title: "Algo ha salido mal",
        text: "<strong>Todavía no</strong> se ha dado de baja. Inténtelo de nuevo dentro de un minuto.",
    },
    not_stored: PageText {
        title: "Algo ha salido mal",
        text: "Su elección <strong>todavía no</strong> se ha guardado. Inténtelo de nuevo dentro de un minuto.",
    },
};
