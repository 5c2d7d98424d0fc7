package worker

import "errors"

func (w *Worker) startEngine() error {
	if w.prefills != nil || w.decodes != nil {
		return nil
	}
	return errors.New("worker: no engine yet")
}

func (w *Worker) stopEngine() {
	if w.prefills != nil {
		w.prefills.Close()
	}
	if w.decodes != nil {
		w.decodes.Close()
	}
}
